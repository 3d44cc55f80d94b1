"""Scenarios from Python: ``raytwin.run`` and ``raytwin.load``, for notebooks and programs.

Both return a `finished.Run`: rows as a DataFrame, metrics, checks, and the drawings of the report.
The package stands above the command line, whose progress bar it shows, and does what
``raytwin run`` does, but for files: a run is written only where `finished.Run.save` is called.

State: none. pandas and matplotlib are imported when a run's rows or drawings are asked for.

Modules, the lower first:

- `finished`: a run, from memory or from disk.
- `runs`: `run` and `load`.
"""

from __future__ import annotations
