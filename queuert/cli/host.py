"""A framework's command line that has all of our commands: `manage.py queuert ...`, `flask queuert ...`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from queuert.app import Queuert


@dataclass(frozen=True)
class Host:
    """Who runs the command line, and on which app: nobody has to name it."""

    app: Queuert
    program: str
    """What the usage begins with, such as `manage.py queuert`."""
    command: Sequence[str]
    """Starts another process at the same place of the command line, before the name of a command."""
    worker: Mapping[str, Any] = field(default_factory=dict)
    """What the framework's settings say of a worker, where its options do not."""


def this_program() -> list[str]:
    """The beginning of a command line that runs this program once more, in an interpreter of its own."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is None:
        return [sys.executable, sys.argv[0]]
    # Run with -m: as a script its own folder would come first on the path.
    name = spec.parent if spec.name.rpartition(".")[2] == "__main__" else spec.name
    return [sys.executable, "-m", name]
