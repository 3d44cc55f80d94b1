"""``python -m raytwin``: the command line."""

from __future__ import annotations

from raytwin.scenarios.cli.main import main

if __name__ == "__main__":
    main()
