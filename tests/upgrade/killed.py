"""Migrates databases and is killed meanwhile: `python killed.py`, with a URL and a number on each line of its input.

For each it forks a process that migrates and is killed as it comes to that line of the migrator, counted as they are run. The
answer is `killed`, or how many lines there were if the process came to its end.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

import queuert.postgres.migrator
import queuert.sqlite.base
from queuert import Queuert

# What holds the steps: the whole of the one, of the other only this function.
MIGRATORS = {queuert.postgres.migrator.__file__: None, queuert.sqlite.base.__file__: "migrate"}


def migrate_until(url: str, point: int) -> int:
    """Returns the number of lines that were run, if it returns."""
    run = 0

    def watch(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal run
        if event == "call":
            only = MIGRATORS.get(frame.f_code.co_filename, "nothing")
            return watch if only in (None, frame.f_code.co_name) else None
        if event == "line":
            run += 1
            if run == point:
                os.kill(os.getpid(), signal.SIGKILL)
        return watch

    app = Queuert(url)
    sys.settrace(watch)
    app.migrate()
    sys.settrace(None)
    return run


def main() -> None:
    for line in sys.stdin:
        url, point = line.split()
        pid = os.fork()
        if not pid:
            print(migrate_until(url, int(point)), flush=True)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code == -signal.SIGKILL:
            print("killed", flush=True)
        elif code:
            sys.exit(code)


if __name__ == "__main__":
    main()
