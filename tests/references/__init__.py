"""References that leave the process that owns the object."""
