"""The dispatcher: decides when to claim, and how many.

It claims what the free slots can take, and for short jobs some more: as many as were lately finished within `AHEAD`
seconds, so that slots need not wait for the next claim. Slow jobs leave nothing to prefetch by that rule. If a slow one
comes along all the same, those that wait behind it are given back.

It sleeps until one of these wakes it: a notice that something was scheduled, a slot that runs out of work while more is
due, the time at which the next scheduled job is due, the poll interval, the end. Whoever wakes it first says why and then
sets the event; the dispatcher first clears the event and then looks. So no wake-up is missed.

Suspects, jobs whose last attempt died with its worker, are claimed one by one and start when nothing waits beside them
(`suspects.py`).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable

from queuert.chains.attempts import claimed_item, release_claims
from queuert.context import Context
from queuert.notify.protocol import ANYTHING
from queuert.worker import suspects
from queuert.worker.claimer import Claimer
from queuert.worker.events import Events
from queuert.worker.held import Held
from queuert.worker.leases import LeaseKeeper
from queuert.worker.outage import Outage
from queuert.worker.slots import Slots

logger = logging.getLogger("queuert.worker")

CLAIM_SIZE = 200  # plain handlers on SQLite, jobs a second: 100: 13,500, 200: 15,700, 400: 13,700, 800: 13,000
AHEAD = 0.05
"""Seconds of work that may wait for a slot."""
WINDOW = 0.02
"""Seconds over which finished jobs are counted to know how many that is."""
LONGEST_WAIT = 0.5
"""Seconds after which a job that waits for a slot is given back."""
YIELD_TO_SLOTS = 0.0001
"""Seconds that leave Python's lock to the slots, before the dispatcher looks for what comes next."""
SUSPECT_LOOK = 1.0
MARGIN = 0.001
"""Seconds after a job is due to look for it: SQLite's clock has milliseconds."""
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""Seconds to look again for jobs that are due and could not be claimed: they are locked, or still run here."""
DEADLINE = 30.0
"""Seconds that a claim may take; what takes longer is tried again on another connection."""
OUTAGE_PAUSE, LONGEST_OUTAGE_PAUSE = 0.1, 2.0


class Dispatcher:
    """Keeps the slots busy, in one thread."""

    def __init__(
        self,
        context: Context,
        worker_id: str,
        claimer: Claimer,
        keeper: LeaseKeeper,
        events: Events,
        *,
        poll_interval: float,
    ) -> None:
        self._context = context
        self._worker_id = worker_id
        self._claimer = claimer
        self._keeper = keeper
        self._events = events
        self._poll_interval = poll_interval
        self._slots: Slots
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._give_up: Callable[[], bool] = lambda: False
        # Set by others, before they set the event.
        # Jobs of ours may be due.
        self._news = True
        # Their types, as far as they were told.
        self._news_types: set[str] = set()
        # Something may have happened, and nobody says what.
        self._maybe_changed = False
        # Whether a slot that becomes free wakes us.
        self._wants_wake_up = False
        self._returned: deque[Held] = deque()
        # The dispatcher's own.
        # Whether there may be jobs to claim.
        self._more = True
        self._look_at = 0.0
        self._pause = FIRST_PAUSE
        # Claimed, and waiting until nothing else does.
        # When it last went round: for those who ask whether it still does.
        self.looked_at = time.monotonic()
        self._suspect: Held | None = None
        self._suspects_looked_at = 0.0
        self._return_unsure = False
        self._rate = 0.0
        self._counted_at = time.monotonic()
        self._counted = 0
        self._outage = Outage(
            context,
            worker_id,
            "Jobs cannot be claimed",
            "Jobs are claimed again.",
            first=OUTAGE_PAUSE,
            longest=LONGEST_OUTAGE_PAUSE,
        )

    def attach(self, slots: Slots) -> None:
        self._slots = slots

    # For the other threads.

    def scheduled(self, type_name: str) -> None:
        """Jobs of this type, or of any if there is none, may be due."""
        if not type_name:
            self._maybe_changed = True
        elif type_name in self._claimer.types:
            self._news_types.add(type_name)
            self._news = True
        else:
            return
        self._wake.set()

    def wants(self, type_name: str) -> bool:
        """Whether a job of this type would be claimed at once: there is a free slot, and nothing else to look for."""
        idle = not (self._more or self._news) and self._slots.running + self._slots.waiting < self._slots.size
        return idle and type_name in self._claimer.types

    def look_again(self) -> None:
        """What could not be claimed a moment ago can be now."""
        self._news = True
        self._wake.set()

    def slot_free(self) -> None:
        if self._wants_wake_up:
            self._wants_wake_up = False
            self._wake.set()

    def give_back(self, held: Held) -> None:
        """This job cannot be started."""
        self._returned.append(held)
        self._wake.set()

    def stop(self, give_up: Callable[[], bool]) -> None:
        """Claim no more, and give back what waits; `give_up` says when to stop trying to."""
        self._give_up = give_up
        self._stopping.set()
        self._wake.set()

    # The thread.

    def run(self) -> None:
        self._context.database.keep_connection()
        try:
            while not self._stopping.is_set():
                self._wake.clear()
                self.looked_at = time.monotonic()
                try:
                    with self._context.database.within(DEADLINE):
                        pause = self._step(time.monotonic())
                except Exception as error:
                    self._more = True
                    self._stopping.wait(self._outage.meet(error))
                    continue
                self._outage.is_over()
                if pause > 0 and not self._stopping.is_set():
                    self._wake.wait(pause)
            self.return_all()
        finally:
            if self._suspect is not None:
                self._keeper.let_go([self._suspect])

    def _step(self, now: float) -> float:
        """Do what can be done; how long to sleep then, unless something wakes us."""
        self._return_late(now)
        if now >= self._look_at:
            self._more = True
        only = self._take_news()
        # Who frees a slot from here on wakes us; who did before is seen by looking.
        self._wants_wake_up = self._more or self._maybe_changed or self._suspect is not None
        self._start_suspect(now)
        limit = self._limit(now)
        if limit > 0 and self._maybe_changed:
            self._maybe_changed = False
            self._claimer.news()
            self._more = self._more or self._is_due()
        if not self._more or limit <= 0:
            return self._until(time.monotonic())
        claimed = self._claimer.claim(limit, running=[held.job.id for held in self._slots.running_jobs()], only=only)
        self._outage.is_over()
        if claimed:
            self._keeper.take(claimed)
            self._slots.submit(self._without_prefetch(claimed) if any(held.job.losses for held in claimed) else claimed)
            if self._returned:
                self._return()
        if not (claimed and self._claimer.more):
            if claimed:
                time.sleep(YIELD_TO_SLOTS)
            if only is None:
                self._look_ahead(found=bool(claimed))
            else:
                self._more = self._is_due()  # the next claim looks at everything
        elif now - self._suspects_looked_at >= SUSPECT_LOOK:
            self._find_suspect()
        self._events.happened("claimed" if claimed else "looked")
        return 0.0 if self._more else self._until(time.monotonic())

    def _take_news(self) -> str | None:
        """Take note of the news. The type that they are about, where there is one and nothing else to look for."""
        if not self._news:
            return None
        self._news = False
        # Who adds to the old set says afterwards that there are news, so that we look again, at everything.
        types, self._news_types = self._news_types, set()
        # The pause is longer where something is due that could not be had: it may be of a higher priority.
        had_nothing = not self._more and self._pause == FIRST_PAUSE
        self._more, self._pause = True, FIRST_PAUSE
        self._claimer.news()
        return types.pop() if had_nothing and len(types) == 1 else None

    def _limit(self, now: float) -> int:
        """How many to claim."""
        slots = self._slots
        if self._suspect is not None:
            return 0
        if now - self._counted_at >= WINDOW:
            self._rate = (slots.finished - self._counted) / (now - self._counted_at)
            self._counted_at, self._counted = now, slots.finished
        ahead = 0 if suspects.running() else min(CLAIM_SIZE, int(self._rate * AHEAD))
        if ahead and slots.usual * ahead > AHEAD * slots.size:  # many that end together look like a high rate
            ahead = int(AHEAD * slots.size / slots.usual)
        slots.low = ahead // 2
        waiting = slots.waiting
        if waiting > slots.low:
            return 0
        return min(CLAIM_SIZE, slots.size + ahead - slots.running - waiting)

    def _until(self, now: float) -> float:
        pause = self._poll_interval if self._more else self._look_at - now
        waiting_since = self._slots.waited_since()
        if waiting_since is not None or self._suspect is not None:
            pause = min(pause, LONGEST_WAIT - (now - (waiting_since or now)))
        return max(0.0, pause)

    def _is_due(self) -> bool:
        """Ask without claiming, which would be a write: every commit of every process on a SQLite file makes us ask."""
        due = self._claimer.next_due()
        if due is not None and due <= 0:
            return True
        self._pause = FIRST_PAUSE
        self._look_at = time.monotonic() + min(self._poll_interval, math.inf if due is None else due + MARGIN)
        return False

    def _look_ahead(self, *, found: bool) -> None:
        """Nothing more could be claimed: when to look again?"""
        due = self._is_due() or self._claimer.unsure_of_suspect
        self._more = due and (self._find_suspect() or found)
        if due and not self._more:
            # It is locked, it still runs here after its lease was lost, or another suspect has its turn.
            self._look_at = time.monotonic() + min(self._poll_interval, self._pause)
            self._pause = min(self._pause * 2, LONGEST_PAUSE)

    # Suspects

    def _without_prefetch(self, claimed: list[Held]) -> list[Held]:
        """Some of these were lost once: nothing waits beside them, so what cannot start now goes back."""
        slots = self._slots
        self._returned.extend(slots.take_back())
        free = max(0, slots.size - slots.running)
        self._returned.extend(claimed[free:])
        return claimed[:free]

    def _find_suspect(self) -> bool:
        if self._suspect is not None or not suspects.take_turn():
            return False
        self._suspects_looked_at = time.monotonic()
        claimed: list[Held] = []
        try:
            claimed = self._claimer.claim(1, suspect=True, running=[held.job.id for held in self._slots.running_jobs()])
        finally:
            if not claimed:
                suspects.end_turn()
        if not claimed:
            return False
        self._suspect = claimed[0]
        self._suspect.turn = True
        self._keeper.take(claimed)
        self._wants_wake_up = True
        self._start_suspect(time.monotonic())
        return True

    def _start_suspect(self, now: float) -> None:
        held = self._suspect
        if held is None:
            return
        if self._slots.waiting == 0 and self._slots.running < self._slots.size:
            self._suspect = None
            self._slots.submit([held])
        elif now - held.claimed >= LONGEST_WAIT:
            self._suspect = None
            self._returned.append(held)
            self._return()

    # Giving back

    def _return_late(self, now: float) -> None:
        since = self._slots.waited_since()
        if since is not None and now - since >= LONGEST_WAIT:
            self._returned.extend(self._slots.take_back())
        if self._returned:
            self._return()

    def _return(self) -> None:
        returned = list(self._returned)
        items = [claimed_item(held.job) for held in returned]
        single = not any("job" in item for item in items)
        for held in returned:
            held.over = True
        try:
            self._context.database.run(
                lambda session: release_claims(self._context, session, self._worker_id, items),
                single=single,
            )
        except Exception:
            self._return_unsure = True
            raise
        if self._return_unsure:  # a try that failed may have given them back, and did not live to tell anybody
            self._return_unsure = False
            self._context.notifier.publish(ANYTHING)
        self._forget(len(returned))
        self._events.happened("returned")

    def _forget(self, number: int) -> None:
        """The first of those that go back are in our hands no longer; slots may have added more behind them."""
        self._keeper.let_go([self._returned.popleft() for _ in range(number)])

    def return_all(self) -> None:
        """At the end: all that was claimed and not started goes back."""
        if self._suspect is not None:
            self._returned.append(self._suspect)
            self._suspect = None
        self._returned.extend(self._slots.take_back())
        while self._returned:
            try:
                self._return()
            except Exception as error:
                pause = self._outage.meet(error)
                if self._give_up():
                    logger.warning("%d claimed jobs could not be given back; their leases run out.", len(self._returned))
                    self._forget(len(self._returned))
                    return
                time.sleep(min(pause, OUTAGE_PAUSE))
