"""What all packages of the control plane share: the context, IDs, resources, settings, errors."""

from __future__ import annotations
