"""What all packages of the control plane share: the context, IDs, resources, settings."""

from __future__ import annotations
