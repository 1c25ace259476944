"""Claims jobs: which types, with which leases, and how far to look.

On PostgreSQL a claim can be told where the one before it stopped. A long transaction elsewhere keeps the dead entries of
claimed jobs at the head of the index, and each claim would step over all of them again. The hint is only that: jobs of
long transactions and jobs that were given back appear before it, higher priorities beside it. So it is dropped when a
claim leaves nothing behind it, when there is news, and after a second; or later, where looking from the start takes long.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from queuert.context import Context
from queuert.job_types import JobType, JobTypeOrName, check_failure_types
from queuert.model import Job
from queuert.options import Lease
from queuert.storage.protocol import Session
from queuert.storage.records import Claim, Level
from queuert.worker.held import Held, Terms
from queuert.worker.limited import LimitedClaims

HINT_LASTS = 1.0
HINT_LASTS_AT_LEAST = 0.1
"""Seconds that it is kept in spite of news: under a stream of them it would never be of use."""
PART_FROM_START, LONGEST_HINT = 0.1, 1.0
"""The hint is kept for longer where it takes long to look from the start, so that this takes a tenth of the time; up to so many
seconds."""

NARROWEST, WIDEST = 1.0, 2.0
WIDER, NARROWER = 2.0, 0.95
"""Candidates for each job asked for, on PostgreSQL: more where others claim at the same time and lock the first ones, fewer
again where nobody does: each is looked up, whether it is taken or not."""
MOST_BYTES = 2**28
"""Of payloads in one claim: they come in one value from SQLite, which has a limit, and take memory everywhere."""
USUAL_BYTES = 8_000_000
"""What a claim should bring at most, judged by the largest input of the claims before it: a row may be much smaller than its
text (1 MB of `1e308` is a row of 40 kB), so that only those who have read some know."""
SMALL = 10_000
"""Inputs that are no larger than this need no such care."""
SHRINK = 0.8
"""Of the largest input, with each claim that brings no larger one."""


class Claimer:
    """Claims for one worker. Used by one thread."""

    def __init__(self, context: Context, worker_id: str, types: Sequence[str] | None, lease: Lease | None) -> None:
        self._context = context
        self._worker_id = worker_id
        self._only = types
        self._lease = lease
        self.more = True
        """Whether the last claim may have left something: it was full, or stepped over what others had locked."""
        self._known = -1
        self._leases: dict[str, Terms] = {}
        self._durations: dict[str, float] = {}
        self._levels: list[Level] = []
        self._hinted_at = 0.0
        self._worth_keeping = 0.0
        """Seconds that the hint is kept whatever happens, unless a claim leaves nothing behind it."""
        self._window = NARROWEST
        self._unsure: dict[bool, tuple[int, float]] = {}
        """Token and start of a claim of which no answer came: of one for suspects, of one for others."""
        self._most = max(1, MOST_BYTES // context.payloads.max_bytes)
        self._largest = 0.0
        # Types that have a limit are claimed by statements of their own.
        self._limits = LimitedClaims(context, worker_id)
        self._limited: dict[str, float] = {}
        self._limited_first = False

    @property
    def unsure_of_suspect(self) -> bool:
        """Whether a suspect may have been claimed without our knowing."""
        return True in self._unsure

    @property
    def types(self) -> dict[str, Terms]:
        """The types that have a handler here, with their leases; those defined later are found too."""
        types = self._context.types
        known = len(types)
        if known != self._known:
            names = types.names_with_handlers()
            wanted = names if self._only is None else [name for name in names if name in self._only]
            leases = {name: Terms.of(types.get(name).resolve_lease(self._lease)) for name in wanted}
            # In this order, since those who bring notices look here too.
            durations = {name: lease.duration for name, lease in leases.items()}
            self._limited = {name: each for name, each in durations.items() if types.get(name).limit is not None}
            self._durations = {name: each for name, each in durations.items() if name not in self._limited}
            self._leases = leases
            self._known = known
        return self._leases

    def check(self) -> None:
        """What cannot work is refused before anything is claimed."""
        check_failure_types(self._context.types)

    def claim(self, limit: int, *, suspect: bool = False, running: Sequence[str] = (), only: str | None = None) -> list[Held]:
        """Claim up to `limit` due jobs; the database decides when their leases end, and trust counts from here.

        With `only`, which a worker hears of that waits for work, the jobs may all be of this type: where that is quicker, no
        others are looked for, and not far.
        """
        leases = self.types
        if not leases:
            return []
        if suspect in self._unsure and (found := self._recover(suspect)):
            return found
        limit = min(limit, self._most, max(1, int(USUAL_BYTES / self._largest)) if self._largest > SMALL else limit)
        if not self._limited:
            return self._claim_unlimited(limit, suspect, running, only)
        if only in self._limited:
            return self._claim_limited(limit, suspect, running, only)
        if only is not None:
            return self._claim_unlimited(limit, suspect, running, only)
        if not self._durations:
            return self._claim_limited(limit, suspect, running)
        # Whoever is first may take all: so they take turns.
        self._limited_first = not self._limited_first
        claims = [self._claim_unlimited, self._claim_limited]
        taken: list[Held] = []
        more = False
        for claim in reversed(claims) if self._limited_first else claims:
            if len(taken) < limit:
                try:
                    taken += claim(limit - len(taken), suspect, running)
                except Exception as error:
                    if not taken or not self._context.database.is_transient(error):
                        raise
                    break  # these are ours, whatever the database does now
                more |= self.more
        self.more = more or len(taken) >= limit
        return taken

    def _claim_limited(self, limit: int, suspect: bool, running: Sequence[str], only: str | None = None) -> list[Held]:
        """Claim jobs of types that have a limit."""
        leases = self._limited if only is None else {only: self._limited[only]}
        token = secrets.randbits(63)
        started = time.monotonic()
        with self._context.explained(), self._noting(token, started, suspect):
            taken = self._limits.claim(leases, limit, token=token, suspect=suspect, held=running)
        self.more = taken.more
        return self._held(started, self._context.repository.claimed_jobs(taken))

    def _claim_unlimited(self, limit: int, suspect: bool, running: Sequence[str], only: str | None = None) -> list[Held]:
        """Claim jobs of types that have none."""
        if only in self._durations and self._context.repository.has_claim_head:
            return self._held(*self._claim_head(only, limit, running))
        levels = [] if suspect else self._hint()
        claimed = self._claim(limit, suspect, running, levels)
        if levels and not (claimed[1] and self.more):
            self._levels = []
            try:
                more = self._claim(limit - len(claimed[1]), suspect, running, [])
            except Exception as error:
                if not claimed[1] or not self._context.database.is_transient(error):
                    raise
                return self._held(*claimed)  # these are ours, whatever the database does now
            return self._held(*claimed) + self._held(*more)
        if not suspect and self._context.repository.claims_from_hint:
            if not levels:
                took = time.monotonic() - claimed[0]
                self._worth_keeping = min(took / PART_FROM_START, LONGEST_HINT)
            self._remember(claimed[1])
            if len(claimed[1]) < limit and self.more:
                self._window = min(self._window * WIDER, WIDEST)
            else:
                self._window = max(self._window * NARROWER, NARROWEST)
        return self._held(*claimed)

    def _claim(self, limit: int, suspect: bool, running: Sequence[str], levels: Sequence[Level]) -> tuple[float, list[Job]]:
        return self._run(
            lambda session, token: self._context.repository.claim(
                session,
                worker=self._worker_id,
                token=token,
                leases=self._durations,
                limit=limit,
                suspect=suspect,
                held=running,
                levels=levels,
                window=self._window,
            ),
            suspect,
        )

    def _claim_head(self, type_name: str, limit: int, running: Sequence[str]) -> tuple[float, list[Job]]:
        return self._run(
            lambda session, token: self._context.repository.claim_head(
                session,
                worker=self._worker_id,
                token=token,
                type_name=type_name,
                lease=self._leases[type_name].duration,
                limit=limit,
                held=running,
            )
        )

    def _run(self, claim: Callable[[Session, int], Claim], suspect: bool = False) -> tuple[float, list[Job]]:
        """Run a claim with a token of its own; when it began, and what it took."""
        token = secrets.randbits(63)
        started = time.monotonic()
        with self._context.explained(), self._noting(token, started, suspect):
            taken = self._context.database.run(lambda session: claim(session, token), single=True)
        self.more = taken.more
        jobs = self._context.repository.claimed_jobs(taken)
        if jobs:
            largest = max([len(job.input) for job in jobs if isinstance(job.input, str)], default=0)
            self._largest = max(float(largest), self._largest * SHRINK)
        return started, jobs

    @contextmanager
    def _noting(self, token: int, started: float, suspect: bool) -> Iterator[None]:
        """Remember a claim that ends with the connection: it may have been made, and then nobody else knows of it."""
        database = self._context.database
        try:
            yield
        except Exception as error:
            if database.loses_answers and database.is_transient(error):
                self._unsure[suspect] = (token, started)
            raise

    def _recover(self, suspect: bool) -> list[Held]:
        """What was claimed when the answer was lost."""
        token, started = self._unsure[suspect]
        with self._context.database.read() as session:
            claim = self._context.repository.claimed_with(session, self._worker_id, token, suspect=suspect)
        del self._unsure[suspect]
        self.more = claim.more
        return self._held(started, self._context.repository.claimed_jobs(claim))

    def _held(self, started: float, jobs: Sequence[Job]) -> list[Held]:
        find, leases = self._context.types.get, self._leases
        return [Held(job, find(job.type_name), leases[job.type_name], started) for job in jobs]

    def next_due(self) -> float | None:
        """Seconds until the next job is due; negative if one is, None if there is none."""
        if not self.types:
            return None
        with self._context.explained(), self._context.database.read() as session:
            repository = self._context.repository
            due = repository.next_due(session, list(self._durations)) if self._durations else None
            if not self._limited or (due is not None and due <= 0):
                return due
            if self._limits.suspects_due(session, self._limited):
                return 0.0
            times = [due, repository.next_scheduled(session, list(self._limited)), self._limits.look_at - time.monotonic()]
        found = min(each for each in times if each is not None)
        return None if found == math.inf else found

    # How far the last claim came

    def news(self) -> None:
        """Something was scheduled that the hint may hide, or a place of a limit may be free."""
        self._limits.look_at = 0.0
        if self._levels and time.monotonic() - self._hinted_at > max(HINT_LASTS_AT_LEAST, self._worth_keeping):
            self._levels = []

    def _hint(self) -> list[Level]:
        if self._levels and time.monotonic() - self._hinted_at > max(HINT_LASTS, self._worth_keeping):
            self._levels = []
        return self._levels

    def _remember(self, jobs: Sequence[Job]) -> None:
        if not self.more:
            self._levels = []
            return
        if not self._levels:
            self._hinted_at = time.monotonic()
        last: dict[tuple[str, int], datetime] = {(level.type_name, level.priority): level.since for level in self._levels}
        for job in jobs:
            last[job.type_name, job.priority] = job.scheduled_at
        self._levels = [Level(*key, since) for key, since in last.items()]


def checked_types(context: Context, types: Iterable[JobTypeOrName] | None) -> tuple[str, ...] | None:
    """Names of known types, from names or types."""
    if types is None:
        return None
    if isinstance(types, (str, bytes, JobType)) or not isinstance(types, Iterable):
        raise TypeError(f"types must be a list of job types or their names, not {types!r}.")
    return tuple(dict.fromkeys(context.types.get(each).name for each in types))
