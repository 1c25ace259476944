"""Claims jobs of types that have a limit, in a transaction of their own: see `chains/limits.py` for what it decides by.

First it looks, which writes nothing: which keys wait, and which have room. Only if one has, their rows are locked, looked
at again, and jobs of them are taken.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from queuert.chains.limits import NO_LIMIT, Room, key_items, limits_by_name, room_of, used_rates
from queuert.context import Context
from queuert.limit import Limit
from queuert.storage.limits import KeyLevel
from queuert.storage.protocol import Session
from queuert.storage.records import Claim

LOOK_AGAIN = 1.0
"""Seconds after which a key without room is looked at again, if nobody says before that something of it has ended."""
KEYS = 50
"""At least so many keys of a type are looked at in one go."""
MOST_LOOKS = 50
ADOPT_EVERY, ADOPT = 5.0, 1_000
"""Every so many seconds jobs are looked for that were started before their type had a limit, among the first of them."""

Key = tuple[str, str]
START: Key = ("", "")


class LimitedClaims:
    """What one worker claims under limits. Used by one thread."""

    def __init__(self, context: Context, worker_id: str) -> None:
        self._context = context
        self._worker_id = worker_id
        # Where the last look at a type stopped, for suspects and for others.
        self._after: dict[tuple[str, bool], Key] = {}
        # When to look again at what is due and could not start; inf: nothing is.
        self.look_at = math.inf
        self._adopted_at = -math.inf

    def claim(self, leases: Mapping[str, float], limit: int, *, token: int, suspect: bool, held: Sequence[str]) -> Claim:
        """Claim up to `limit` jobs of these types."""
        self._adopt(leases)
        self.look_at = math.inf
        limits, repository = limits_by_name(self._context.types), self._context.repository
        start = dict(self._after)
        for _ in range(MOST_LOOKS):
            with self._context.database.read() as session:
                levels, more = self._look(session, leases, limit, suspect)
                due = [level for level in levels if level.due]
                rooms = self._rooms(session, limits, due)
            open_ = [level for level in due if self._has_room(rooms, level)]
            if open_:
                take = partial(self._take, leases=leases, limits=limits, wanted=open_, limit=limit)
                taken = self._context.database.run(partial(take, token=token, suspect=suspect, held=held))
                if repository.claimed_jobs(taken):
                    return taken._replace(more=True)
            if not more and (not start or suspect or all(at == START for at in start.values())):
                break
            if not more:
                start = {}
        return self._nothing(token, suspect)

    def suspects_due(self, session: Session, types: Iterable[str]) -> bool:
        """Whether a suspect of these types may be due: suspects are claimed one by one."""
        look = partial(self._context.repository.waiting_keys, session, suspect=True, after=START, window=KEYS)
        return any(level.due for name in types for level in look(name))

    def _nothing(self, token: int, suspect: bool) -> Claim:
        return self._context.repository.no_claim(self._worker_id, token, suspect)

    def _adopt(self, leases: Mapping[str, float]) -> None:
        now = time.monotonic()
        if now - self._adopted_at < ADOPT_EVERY:
            return
        self._adopted_at = now
        self._context.database.run(
            lambda session: self._context.repository.adopt_jobs(session, list(leases), NO_LIMIT, ADOPT), single=True
        )

    def _look(self, session: Session, leases: Mapping[str, float], limit: int, suspect: bool) -> tuple[list[KeyLevel], bool]:
        """The next keys of each type, and whether there are others behind them."""
        found: list[KeyLevel] = []
        more = False
        window = max(KEYS, limit)
        for name in leases:
            after = self._after.get((name, suspect), START)
            levels = self._context.repository.waiting_keys(session, name, suspect=suspect, after=after, window=window)
            found += levels
            full = len(levels) >= window
            more |= full
            self._after[name, suspect] = (levels[-1].name, levels[-1].key) if full else START
        return found, more

    def _rooms(self, session: Session, limits: Mapping[str, Limit], levels: Sequence[KeyLevel]) -> dict[Key, Room]:
        items = key_items(limits, levels)
        states = self._context.repository.look_at_keys(session, items) if items else []
        rooms = {(state.name, state.key): room_of(limits.get(state.name), state) for state in states}
        for room in rooms.values():
            if room.number <= 0:
                wait = LOOK_AGAIN if room.look_at is None else (room.look_at - room.state.now).total_seconds()
                self.look_at = min(self.look_at, time.monotonic() + wait)
        return rooms

    @staticmethod
    def _has_room(rooms: Mapping[Key, Room], level: KeyLevel) -> bool:
        if level.name == NO_LIMIT:
            return True
        room = rooms.get((level.name, level.key))
        return room is not None and room.number > 0

    def _take(
        self,
        session: Session,
        leases: Mapping[str, float],
        limits: Mapping[str, Limit],
        wanted: Sequence[KeyLevel],
        limit: int,
        token: int,
        suspect: bool,
        held: Sequence[str],
    ) -> Claim:
        repository = self._context.repository
        items = key_items(limits, wanted)
        repository.lock_limit_keys(session, items)
        rooms = self._rooms(session, limits, wanted)
        levels: list[dict[str, Any]] = []
        heads: dict[str, dict[str, Any]] = {}
        for level in wanted:
            room = rooms.get((level.name, level.key))
            number = limit if level.name == NO_LIMIT else 0 if room is None else min(limit, room.number)
            if number <= 0:
                continue
            about = {"name": level.name, "key": level.key, "type": level.type_name, "lease": leases[level.type_name]}
            own = limits.get(level.name)
            if own is not None and own.strict:
                assert room is not None
                if room.state.head is not None:
                    heads[room.state.head] = {"id": room.state.head, **about}
            else:
                levels.append({**about, "priority": level.priority, "room": number})
        if heads:
            known = repository.get_jobs(session, list(heads))
            heads = {
                identity: {**head, "type": known[identity].type_name, "lease": leases[known[identity].type_name]}
                for identity, head in heads.items()
                if identity in known and known[identity].type_name in leases
            }
        if not levels and not heads:
            return self._nothing(token, suspect)
        claim = repository.claim_limited(
            session,
            worker=self._worker_id,
            token=token,
            levels=levels,
            heads=list(heads.values()),
            limit=limit,
            suspect=suspect,
            held=held,
        )
        taken = Counter((str(job.limit_name), str(job.limit_key)) for job in repository.claimed_jobs(claim))
        used = used_rates(rooms, taken)
        if used:
            repository.use_rates(session, used)
        return claim
