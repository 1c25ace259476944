"""`Did you mean ...?`: the name that somebody probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'email'?`, to go at the end of a message; nothing where no known name is near."""
    names = list(known)
    # Whatever the case, and whichever of "-" and "_" it is written with.
    plain = {each.lower().replace("_", "-"): each for each in reversed(names)}
    near = difflib.get_close_matches(name.lower().replace("_", "-"), plain, n=1, cutoff=0.6)
    return f" Did you mean {plain[near[0]]!r}?" if near else ""
