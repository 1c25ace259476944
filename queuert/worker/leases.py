"""Leases: who is trusted with a job, and for how long.

**What a lease is.** A claim writes `(leased_by, lease_token, leased_until)` into the job's row. The pair of the first two
is the fence: every statement that completes, ends, renews or gives back a job names it, and changes nothing where the row
has another. So the database never believes a worker that lost a job, however convinced that worker is. What is left for
this module is to keep leases alive, and to tell handlers early that theirs is gone, so that they stop doing work that
nobody will accept.

**How long a worker may trust its lease.** The database grants a lease from its own *now*, which lies somewhere between the
moment the statement was sent and the moment its answer arrived. A worker cannot know where, and cannot compare its clock
with the database's. It can only be sure of the earlier end: trust lasts until the (monotonic) time at which the call
*started*, plus the duration. A renewal that took two thirds of the duration and succeeded leaves one third, not three.

**What trust is good for.** A claimed job that waits is started only while its lease is trusted. One whose trust ended is
given back instead, which the fence makes harmless. A handler that already runs is another matter: see below.

**Renewal.** One statement renews every lease in hand that is due, those of waiting jobs and of results that wait to be
written included, so that a full hand costs one round trip each third of a lease. A row that somebody has locked is
skipped rather than waited for, since one open transaction must not delay the renewal of the others. So "not renewed" is
not yet "lost": the row is looked at.

- It still carries our pair: it was only locked. It is tried again soon, and often enough before the lease ends.
- It does not: it was reaped and maybe taken by another worker, cancelled, completed from outside, or deleted. The handler's
  signal is set with that reason, and the lease is forgotten.

What a handler tells of its progress goes along with the renewal. Its lease is renewed early for that, once a second at most.

**When the database cannot be reached**, renewals fail until it can. Past the end of trust somebody else, for whom the
database is not down, may have taken the job over: the handlers are told that they have lost it. That may be wrong. If it is,
nothing is lost by it: what a handler returns in the end is written if the pair still stands, and a job that was broken
off goes back without using up an attempt.

**Who takes leases away.** The reaper of any worker, once `leased_until` has passed on the database's clock. It leaves
alone what its own worker has in hand: a lease that ran out while this process waited, for the lock of a SQLite file or
for a database that was down, is renewed as soon as it can be. Other workers do not know that, and may be quicker; then
the fence decides.

**A handler that hangs.** Python threads cannot be killed. A handler that was told that its time is up, and does not end, would
hold its job for ever: so after a grace its lease is renewed no more. Its slot is lost until it ends (`zombies`).

**A worker that stalls** (a stopped process, a suspended machine) finds its leases overdue when it wakes up. It asks
before it believes: the first thing this thread does is to renew, and that finds out what others took over meanwhile.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from queuert.context import Context
from queuert.observing import facts
from queuert.progress import Told
from queuert.running_job import Reason
from queuert.storage.protocol import Session
from queuert.storage.trouble import Trouble
from queuert.worker import suspects
from queuert.worker.attempt import AttemptRun
from queuert.worker.events import Events
from queuert.worker.held import Held
from queuert.worker.outage import Outage
from queuert.worker.outcome import lost_reason

logger = logging.getLogger("queuert.worker")

EARLY = 0.1  # of the interval: leases that are due so soon are renewed along with those that are due now
RETRY_PART = 0.25  # of the interval: the pause before a lease whose row was locked, or a database that failed, is tried again
LONGEST_RETRY = 1.0
LOOK_AROUND = 0.25
"""Seconds between two looks at all leases, where notices say only that something may have happened."""
RENEW_AT_ONCE = 1_000
NEWS_EVERY = 1.0
"""Seconds between two renewals that are early because handlers have told how far they are."""
SIGN_EVERY = 5.0
"""Seconds between two signs of life of a worker."""
SIGN_ALONG = 1.0
"""Seconds that a sign of life may come early, since leases are renewed anyway."""
DEADLINE = 10.0
"""Seconds that a renewal may take; what takes longer is tried again on another connection, while the lease still lasts."""
LONGEST_GRACE = 30.0
"""Seconds, or the duration of its lease if that is shorter, that a handler has to end once its time is up."""


class CountsRates(Protocol):
    """What was done lately; see `attendance.py`."""

    def rows(self, now: float) -> list[dict[str, Any]]: ...

    def written(self, rows: Sequence[dict[str, Any]]) -> None: ...


class Tells(Protocol):
    """What a worker tells of itself; see `attendance.py`."""

    @property
    def rates(self) -> CountsRates: ...

    def sign(self) -> dict[str, Any]: ...


class LeaseKeeper:
    """Knows all jobs in hand, renews their leases, and tells their handlers when one is lost or its time is up. With the
    renewals goes the worker's sign of life."""

    def __init__(self, context: Context, worker_id: str, events: Events, on_turn_ended: Callable[[], None]) -> None:
        self._context = context
        self._worker_id = worker_id
        self._events = events
        self._on_turn_ended = on_turn_ended
        self._lock = threading.Lock()
        self._held: dict[str, Held] = {}
        self._next = math.inf
        self._doubted: set[str] = set()
        self._doubt_all = False
        self._looked_at = -math.inf
        # Those that were too young to be looked at: they are looked at the next time.
        self._young: list[Held] = []
        self._zombies: list[Held] = []
        self._ending = False
        self._attendance: Tells | None = None
        self._sign_at = 0.0
        # Whether a handler has told how far it is, and when that may be written next.
        self._news = False
        self._news_at = 0.0
        self._outage = Outage(
            context,
            worker_id,
            "Leases cannot be renewed",
            "Leases are renewed again.",
            first=LONGEST_RETRY,
            longest=LONGEST_RETRY,
        )
        self._wake = threading.Event()
        # Its connection is open, or could not be opened for now.
        self.ready = threading.Event()

    def attach(self, attendance: Tells) -> None:
        """What the worker tells of itself, from the start on."""
        self._attendance = attendance

    # For the other threads.

    def sign(self) -> None:
        """Tell now that the worker is there: before its threads start."""
        self._renew((), sign=True)

    def sign_soon(self) -> None:
        """Something of it has changed that others should see."""
        self._sign_at = 0.0
        self._wake.set()

    def take(self, claimed: Sequence[Held]) -> None:
        """These are in hand from now on."""
        first = min(held.renew_at for held in claimed)
        replaced = []
        lost_before = [held for held in claimed if held.job.losses]
        for held in lost_before:
            held.counted = True
        if lost_before:
            suspects.count_lost_before(len(lost_before))
        with self._lock:
            for held in claimed:
                earlier = self._held.get(held.job.id)
                if earlier is not None:
                    replaced.append(earlier)
                self._held[held.job.id] = held
            sooner = first < self._next
        for earlier in replaced:  # lost, and claimed anew before anybody noticed
            earlier.lose("taken_by_another_worker")
        if sooner:
            self._wake.set()

    def start(self, held: Held, attempt: AttemptRun, now: float) -> None:
        """The handler starts: its time counts from here, and it can be told things."""
        held.started = now
        held.attempt = attempt
        attempt.report.on_news = self._hear
        if held.lost is not None:  # in this very moment
            held.tell(held.lost)
        timeout = held.job_type.timeout
        if timeout is not None:
            held.deadline = now + timeout
            if held.deadline < self._next:
                self._wake.set()

    def _hear(self) -> None:
        """A handler tells how far it is. Thousands of times a second, maybe: only the first wakes the thread."""
        if not self._news:
            self._news = True
            self._wake.set()

    def let_go(self, done: Iterable[Held]) -> None:
        """These are in hand no longer."""
        turn_ended = False
        with self._lock:
            for held in done:
                if self._held.get(held.job.id) is held:
                    del self._held[held.job.id]
                if held.counted:
                    held.counted = False
                    suspects.count_lost_before(-1)
                # One that lost its lease while it runs keeps its turn: it may still be deadly. Not if it hangs.
                if held.turn and (held.over or held.started is None or held.zombie_at <= time.monotonic()):
                    held.turn = False
                    suspects.end_turn()
                    turn_ended = True
            idle = self._ending and not self._held
        if turn_ended:
            self._on_turn_ended()
        if idle:
            self._wake.set()

    def holds(self, job_id: str, token: int | None) -> bool:
        held = self._held.get(job_id)
        return held is not None and held.job.lease_token == token

    @property
    def zombies(self) -> list[Held]:
        """Jobs whose handlers did not end when their time was up: their leases are not renewed, and their slots are taken."""
        self._zombies = [held for held in self._zombies if not held.over]
        return list(self._zombies)

    def in_hand(self) -> list[Held]:
        with self._lock:
            return list(self._held.values())

    def doubt(self, job_id: str) -> None:
        """Somebody says that a lease was lost; without an id, that any may have been."""
        with self._lock:
            if not job_id:
                self._doubt_all = True
            elif job_id in self._held:
                self._doubted.add(job_id)
            else:
                return
        self._wake.set()

    def end(self) -> None:
        """End as soon as nothing is in hand any more."""
        self._ending = True
        self._wake.set()

    # The thread.

    def run(self) -> None:
        self._context.database.own_connection()
        self.ready.set()
        while True:
            self._wake.clear()
            if self._ending and not self._held:
                self._leave()
                return
            with self._context.database.within(DEADLINE):
                self._step()
            self._wake.wait(self._pause())

    def _step(self) -> None:
        now = time.monotonic()
        in_hand = self.in_hand()
        for held in in_hand:
            if held.deadline <= now:
                held.deadline = math.inf
                if not held.over:
                    about = {"event": "timed_out", **facts(held.job, self._worker_id)}
                    text = "%s has used up its %g seconds; its handler is told."
                    logger.info(text, held, held.job_type.timeout, extra=about)
                    held.zombie_at = now + min(LONGEST_GRACE, held.lease.duration)
                    held.tell("timeout")
            if held.zombie_at <= now and not held.over:
                self._give_up(held)
        in_hand = [held for held in in_hand if held.zombie_at > now]
        telling = set()
        if self._news and now >= self._news_at:
            self._news = False  # before the look at what was told: who tells more from here on wakes this thread again
            self._news_at = now + NEWS_EVERY
            telling = {held for held in in_hand if held.news is not None}
        due = [held for held in in_hand if held.renew_at <= now or held in telling]
        sign = now >= self._sign_at - (SIGN_ALONG if due else 0.0)
        if due or sign:
            due = [held for held in in_hand if held in telling or held.renew_at <= now + EARLY * held.lease.renew_every]
            for start in range(0, max(1, len(due)), RENEW_AT_ONCE):
                self._renew(due[start : start + RENEW_AT_ONCE], sign=sign and not start)
        self._look(in_hand)

    def _pause(self) -> float | None:
        with self._lock:
            wanted = [min(held.renew_at, held.deadline, held.zombie_at) for held in self._held.values()]
            self._next = min(wanted, default=math.inf)
            if self._attendance is not None:
                self._next = min(self._next, self._sign_at)
            if self._news:
                self._next = min(self._next, self._news_at)
            if (self._doubt_all or self._young) and self._held:
                self._next = min(self._next, self._looked_at + LOOK_AROUND)
        return None if self._next == math.inf else max(0.0, self._next - time.monotonic())

    def _renew(self, due: Sequence[Held], *, sign: bool = False) -> None:
        attendance = self._attendance if sign else None
        if attendance is None and not due:
            self._sign_at = math.inf
            return
        news = [held.news for held in due]
        items = [_item(held, told) for held, told in zip(due, news, strict=True)]
        repository, started = self._context.repository, time.monotonic()
        try:
            if attendance is None:
                renewed = self._context.database.run(
                    lambda session: repository.renew_leases(session, self._worker_id, items), single=True
                )
            else:
                renewed = self._renew_and_sign(items, attendance, started)
            missing = [held for held in due if held.job.id not in renewed]
            states = self._states(missing) if missing else {}
        except Exception as error:
            self._sign_at = max(self._sign_at, time.monotonic() + LONGEST_RETRY)
            if self._context.database.trouble(error) is Trouble.JOB:
                self._refused(due, error)
            else:
                self._outage.meet(error)
                self._not_renewed(due)
            return
        self._outage.is_over()
        for held, told in zip(due, news, strict=True):
            if held.job.id in renewed:
                held.stored = told or held.stored
                held.trusted_until = started + held.lease.duration
                held.renew_at = started + held.lease.renew_every
            elif reason := states[held.job.id]:
                self._lost(held, reason)
            else:
                held.renew_at = time.monotonic() + _retry_pause(held)
        self._events.happened("renewed" if due else "signed")

    def _renew_and_sign(self, items: Sequence[dict[str, Any]], attendance: Tells, now: float) -> set[str]:
        repository, database = self._context.repository, self._context.database
        sign, rates = attendance.sign(), attendance.rates.rows(now)

        def work(session: Session) -> set[str]:
            return repository.renew_and_sign(session, self._worker_id, items, sign, rates)

        renewed = database.run(work, single=repository.signs_in_one_statement)
        attendance.rates.written(rates)
        self._sign_at = now + SIGN_EVERY
        return renewed

    def _leave(self) -> None:
        """The worker has stopped: nobody needs to wait for another sign of life. What it did still counts."""
        if self._attendance is None:
            return
        repository, rates = self._context.repository, self._attendance.rates.rows(time.monotonic())
        sign = self._attendance.sign()

        def work(session: Session) -> None:
            repository.renew_and_sign(session, self._worker_id, (), sign, rates)
            repository.leave(session, self._worker_id)

        try:
            self._context.database.run(work)
        except Exception as error:  # it is shown as lost, and removed later
            logger.debug("The worker %s could not sign off.", self._worker_id, exc_info=error)

    def _look(self, in_hand: Sequence[Held]) -> None:
        """Ask about the leases that are in doubt."""
        now = time.monotonic()
        doubted = []
        if (self._doubt_all or self._young) and now >= self._looked_at + LOOK_AROUND:
            # What was claimed a moment ago is not worth a question yet: short jobs would be asked about all the time.
            old = [held for held in in_hand if held.claimed <= now - LOOK_AROUND and not held.over]
            young_before, self._young = self._young, []
            if self._doubt_all:
                doubted = old
                self._young = [held for held in in_hand if held.claimed > now - LOOK_AROUND]
            else:
                doubted = [held for held in young_before if held in old]
            self._doubt_all = False
            self._looked_at = now
        with self._lock:
            named, self._doubted = self._doubted, set()
        doubted += [held for held in in_hand if held.job.id in named]
        if not doubted:
            return
        try:
            states = self._states(doubted)
        except Exception as error:
            self._outage.meet(error)
            self._doubt_all = True
            return
        for held in doubted:
            if reason := states[held.job.id]:
                self._lost(held, reason)

    def _states(self, doubted: Sequence[Held]) -> dict[str, Reason | None]:
        with self._context.database.read() as session:
            states = self._context.repository.lease_states(session, [held.job.id for held in doubted])
        return {held.job.id: lost_reason(states.get(held.job.id), self._worker_id, held.job.lease_token) for held in doubted}

    def _give_up(self, held: Held) -> None:
        """The handler hangs. Another worker may have the job when its lease has run out; the fence holds."""
        about = {"event": "zombie", **facts(held.job, self._worker_id)}
        text = "%s does not end, %g seconds after its time was up: its lease is not renewed any more, and its slot is taken."
        logger.error(text, held, min(LONGEST_GRACE, held.lease.duration), extra=about)
        self._zombies = [*self.zombies, held]
        self.let_go([held])

    def _lost(self, held: Held, reason: Reason) -> None:
        self.let_go([held])
        if held.over or held.lost:  # its result was written in this very moment, or is refused when it is
            return
        about = {"event": "lease_lost", "reason": reason, **facts(held.job, self._worker_id)}
        logger.info("The lease of %s is lost: %s.", held, reason.replace("_", " "), extra=about)
        held.lose(reason)

    def _refused(self, due: Sequence[Held], error: Exception) -> None:
        """The database refuses one of these leases, as a trigger can: find out which, so that the others are renewed."""
        if not due:
            self._outage.meet(error)
            return
        if len(due) > 1:
            self._renew(due[: len(due) // 2])
            self._renew(due[len(due) // 2 :])
            return
        [held] = due
        if not held.refused:
            held.refused = True
            about = {"event": "renewal_refused", **facts(held.job, self._worker_id)}
            logger.warning("The lease of %s cannot be renewed: %s.", held, type(error).__name__, extra=about)
        self._not_renewed(due)

    def _not_renewed(self, due: Sequence[Held]) -> None:
        now = time.monotonic()
        for held in due:
            held.renew_at = now + _retry_pause(held)
            if held.trusted_until <= now and not held.over:
                held.tell("taken_by_another_worker")


def _item(held: Held, told: Told | None) -> dict[str, Any]:
    item = {"id": held.job.id, "token": held.job.lease_token, "lease": held.lease.duration}
    return item if told is None else {**item, "fraction": told.fraction, "message": told.message}


def _retry_pause(held: Held) -> float:
    return min(LONGEST_RETRY, RETRY_PART * held.lease.renew_every)
