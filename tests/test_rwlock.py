"""The read/write lock: sharing, exclusion, order, and misuse."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import eventually

from queuert.sqlite.rwlock import RWLock

pytestmark = pytest.mark.conformance

SIDES = ["read", "write"]


@pytest.fixture
def lock() -> RWLock:
    return RWLock()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as pool:
        yield pool


def side(lock: RWLock, name: str, timeout: float | None = None) -> AbstractContextManager[None]:
    return lock.read(timeout) if name == "read" else lock.write(timeout)


@contextmanager
def held_elsewhere(lock: RWLock, name: str, pool: ThreadPoolExecutor) -> Iterator[Callable[[], None]]:
    """Another thread holds a side until the block ends or the yielded function is called."""
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with side(lock, name):
            inside.set()
            assert leave.wait(30)

    future = pool.submit(hold)
    assert inside.wait(10)
    try:
        yield leave.set
    finally:
        leave.set()
        future.result(10)


def queue(lock: RWLock, name: str, pool: ThreadPoolExecutor, log: list[str], label: str) -> Future[None]:
    """Start a thread that wants a side, and wait until it is queued."""
    before = lock.waiting_readers + lock.waiting_writers

    def enter() -> None:
        with side(lock, name, 20):
            log.append(label)

    future = pool.submit(enter)
    eventually(lambda: lock.waiting_readers + lock.waiting_writers == before + 1)
    return future


def test_readers_share(lock: RWLock) -> None:
    together = threading.Barrier(8)

    def read() -> None:
        with lock.read():
            together.wait(10)

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(read) for _ in range(8)]:
            future.result(10)


@pytest.mark.parametrize(("inside", "outside"), [("write", "write"), ("write", "read"), ("read", "write")])
def test_a_writer_excludes_everybody(lock: RWLock, pool: ThreadPoolExecutor, inside: str, outside: str) -> None:
    log: list[str] = []
    with held_elsewhere(lock, inside, pool) as leave:
        waiting = queue(lock, outside, pool, log, outside)
        assert log == []
        leave()
        waiting.result(10)
    assert log == [outside]


def test_a_queued_writer_holds_back_new_readers(lock: RWLock, pool: ThreadPoolExecutor) -> None:
    log: list[str] = []
    with held_elsewhere(lock, "read", pool) as leave:
        waiting = [queue(lock, name, pool, log, name) for name in ("write", "read")]
        assert (lock.waiting_writers, lock.waiting_readers) == (1, 1)
        leave()
        for future in waiting:
            future.result(10)
    assert log == ["write", "read"]


def test_writers_go_in_the_order_they_came(lock: RWLock, pool: ThreadPoolExecutor) -> None:
    log: list[str] = []
    with held_elsewhere(lock, "write", pool) as leave:
        waiting = [queue(lock, "write", pool, log, str(number)) for number in range(10)]
        assert lock.waiting_writers == 10
        leave()
        for future in waiting:
            future.result(10)
    assert log == [str(number) for number in range(10)]
    assert lock.waiting_writers == 0


def test_readers_go_before_writers_that_came_later(lock: RWLock, pool: ThreadPoolExecutor) -> None:
    log: list[str] = []
    arrivals = ["r1", "r1", "w2", "r3", "w4", "w5", "r6", "r6"]
    with held_elsewhere(lock, "write", pool) as leave:
        waiting = [queue(lock, "read" if label[0] == "r" else "write", pool, log, label) for label in arrivals]
        leave()
        for future in waiting:
            future.result(10)
    assert log == arrivals


def test_a_thread_that_wants_the_lock_again_goes_to_the_end(lock: RWLock, pool: ThreadPoolExecutor) -> None:
    log: list[str] = []
    lock.acquire_write()
    waiting = queue(lock, "write", pool, log, "other")
    lock.release_write()
    with lock.write(10):
        log.append("me")
    waiting.result(10)
    assert log == ["other", "me"]


@pytest.mark.parametrize("held", SIDES)
@pytest.mark.parametrize("wanted", SIDES)
def test_taking_it_again_on_the_same_thread_is_an_error(lock: RWLock, held: str, wanted: str) -> None:
    with side(lock, held):
        with pytest.raises(RuntimeError, match=f"holds the {held} side"), side(lock, wanted):
            pass
        with pytest.raises(RuntimeError):
            side(lock, wanted, 5).__enter__()
    with lock.write(0):  # and it is free again
        pass


@pytest.mark.parametrize("name", SIDES)
def test_releasing_what_is_not_held_is_an_error(lock: RWLock, pool: ThreadPoolExecutor, name: str) -> None:
    release = lock.release_read if name == "read" else lock.release_write
    with pytest.raises(RuntimeError, match=f"does not hold the {name} side"):
        release()
    with held_elsewhere(lock, name, pool), pytest.raises(RuntimeError, match="does not hold"):
        release()
    with side(lock, "write" if name == "read" else "read"), pytest.raises(RuntimeError, match="does not hold"):
        release()
    with side(lock, name):
        pass
    with pytest.raises(RuntimeError, match="does not hold"):
        release()


def test_an_exception_in_the_block_releases_it(lock: RWLock) -> None:
    for name in SIDES:
        with pytest.raises(ZeroDivisionError), side(lock, name):
            raise ZeroDivisionError
    with lock.write(0):
        pass


@pytest.mark.parametrize("timeout", [0, 0.02])
@pytest.mark.parametrize("wanted", SIDES)
def test_a_wait_that_times_out_leaves_no_trace(lock: RWLock, pool: ThreadPoolExecutor, wanted: str, timeout: float) -> None:
    with held_elsewhere(lock, "write", pool):
        with pytest.raises(TimeoutError), side(lock, wanted, timeout):
            pass
        assert lock.waiting_writers == lock.waiting_readers == 0
    with lock.write(0):
        pass


def test_readers_behind_a_writer_that_gives_up_go_in(lock: RWLock, pool: ThreadPoolExecutor) -> None:
    log: list[str] = []
    with held_elsewhere(lock, "read", pool):
        giving_up = pool.submit(lock.acquire_write, 0.5)
        eventually(lambda: lock.waiting_writers == 1)
        reader = queue(lock, "read", pool, log, "reader")
        with pytest.raises(TimeoutError):
            giving_up.result(10)
        reader.result(10)  # while the first reader is still inside
    assert log == ["reader"]


@pytest.mark.parametrize("granted", [False, True])
def test_an_interrupted_wait_leaves_no_trace(
    lock: RWLock, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, granted: bool
) -> None:
    real_wait = threading.Condition.wait
    main = threading.get_ident()
    with held_elsewhere(lock, "write", pool) as leave:

        def interrupted(condition: threading.Condition, timeout: float | None = None) -> bool:
            if threading.get_ident() == main and condition in [waiter.turn for waiter in lock._queue]:
                if granted:
                    leave()
                    real_wait(condition, timeout)
                raise KeyboardInterrupt
            return real_wait(condition, timeout)

        monkeypatch.setattr(threading.Condition, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock.acquire_write()
        assert lock.waiting_writers == 0
    with lock.write(5):
        pass


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.sampled_from(["read", "write", "write briefly"]), min_size=1, max_size=8), min_size=2, max_size=16))
def test_any_mixture_of_threads_ends_and_never_breaks_the_rules(plans: list[list[str]]) -> None:
    lock = RWLock()
    guard = threading.Lock()
    readers = writers = 0
    broken: list[str] = []
    together = threading.Barrier(len(plans))

    def run(plan: list[str]) -> None:
        nonlocal readers, writers
        together.wait(10)
        for step in plan:
            reads = step == "read"
            try:
                (lock.acquire_read if reads else lock.acquire_write)(0.0005 if step == "write briefly" else 20)
            except TimeoutError:
                if step != "write briefly":
                    broken.append("starved")
                continue
            with guard:
                readers, writers = readers + reads, writers + (not reads)
                if writers > 1 or (writers and readers):
                    broken.append(f"{readers} readers and {writers} writers")
            time.sleep(random.choice([0, 0.0002]))  # others get the chance to be where they must not be
            with guard:
                readers, writers = readers - reads, writers - (not reads)
            (lock.release_read if reads else lock.release_write)()

    threads = [threading.Thread(target=run, args=(plan,)) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert broken == []
    assert (lock.waiting_readers, lock.waiting_writers) == (0, 0)
    lock.acquire_write(0)


@pytest.mark.parametrize(("crowd", "single"), [("write", "read"), ("read", "write")])
def test_nobody_starves_in_a_crowd_that_never_pauses(lock: RWLock, crowd: str, single: str) -> None:
    stop = threading.Event()

    def hammer() -> None:
        while not stop.is_set():
            with side(lock, crowd):
                time.sleep(0.0005)  # so that the next of the crowd is there before this one leaves

    with ThreadPoolExecutor(8) as pool:
        hammering = [pool.submit(hammer) for _ in range(8)]
        try:
            for _ in range(20):
                with side(lock, single, 10):
                    pass
        finally:
            stop.set()
        for future in hammering:
            future.result(10)


def test_a_release_wakes_one_writer_only(lock: RWLock, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    woken = 0
    real_wait = threading.Condition.wait

    def counted(condition: threading.Condition, timeout: float | None = None) -> bool:
        nonlocal woken
        ours = condition in [waiter.turn for waiter in lock._queue]
        result = real_wait(condition, timeout)
        woken += ours
        return result

    monkeypatch.setattr(threading.Condition, "wait", counted)
    log: list[str] = []
    with held_elsewhere(lock, "write", pool) as leave:
        waiting = [queue(lock, "write", pool, log, str(number)) for number in range(20)]
        leave()
        for future in waiting:
            future.result(10)
    assert woken == 20
