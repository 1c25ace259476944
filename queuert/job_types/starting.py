"""Which app a job type starts its chains in: the one that defines it, or that has included its registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from queuert.errors import QueuertError

if TYPE_CHECKING:
    from queuert.job_types.job_type import JobType
    from queuert.job_types.registry import JobTypes
    from queuert.model import Chain


class StartsChains(Protocol):
    """What a job type needs of an app."""

    @property
    def start_chain(self) -> Callable[..., Chain[Any]]: ...


AppOf = Callable[[], "StartsChains | None"]
"""Says which app a registry belongs to at this moment; None if that one is gone."""


def app_of(job_type: JobType[Any, Any], registry: JobTypes | None) -> StartsChains:
    """The only app that knows a job type."""
    found: list[tuple[AppOf, StartsChains]] = []
    for belongs in _belongings(registry) if registry is not None else ():
        app = belongs()
        if app is not None:
            found.append((belongs, app))
    if len(found) == 1:
        return found[0][1]
    name = job_type.name
    if not found:
        raise QueuertError(f"No app has included the registry of {name!r}: call app.include(...) with it before start().")
    raise QueuertError(
        f"{len(found)} apps have included the registry of {name!r}, so which one is meant? Call start_chain of that one."
    )


def _belongings(registry: JobTypes) -> list[AppOf]:
    """Of this registry, or, where it belongs to no app itself, of the nearest that include it."""
    found: list[AppOf] = []
    seen = [registry]
    for each in seen:
        if each.belongs_to is None:
            seen.extend(outer for outer in each.included_by() if outer not in seen)
        elif each.belongs_to not in found:
            found.append(each.belongs_to)
    return found
