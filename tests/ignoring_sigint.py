"""The command line as a shell starts it in the background: with SIGINT ignored, in children too."""

from __future__ import annotations

import signal

from raytwin.scenarios.cli.main import main

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main()
