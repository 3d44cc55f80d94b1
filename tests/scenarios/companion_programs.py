"""What companions run in tests."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from raytwin.scenarios.peers.companion import answer


def reply(request: dict[str, Any]) -> Any:
    """Do what the request says."""
    match request["do"]:
        case "echo":
            print("this is for people")
            return request["what"]
        case "fail":
            raise ValueError("no\nsuch thing")
        case "end":
            print("the last words", file=sys.stderr)
            sys.exit(3)
        case "child":
            # In a session of its own, as a daemon is.
            sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
            return subprocess.Popen(sleeper, start_new_session=True).pid
        case "pid":
            return os.getpid()
    raise ValueError(request["do"])


if __name__ == "__main__":
    answer(reply)
