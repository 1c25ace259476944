"""What the domain modules share: the database, the repository, the registered types, and how to tell others of a change.

It decides on which session a call runs (`conn=` or one of our own) and where the notices of a change go: after the commit
where we learn of it, inside the transaction where we do not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from queuert.codec import CodecError, dump_json, has_nul, load_json
from queuert.error_codes import ErrorCodes
from queuert.errors import JobTypeValidationError, ValidationCode
from queuert.hooks import Hooks
from queuert.ids import Ids
from queuert.job_types import JobType, JobTypes
from queuert.model import Chain, Job, Status
from queuert.notify.protocol import Channel, Notice, Notifier
from queuert.observing import Observer
from queuert.options import Duration, instant, seconds
from queuert.storage.migrations import explain
from queuert.storage.protocol import Database, Session
from queuert.storage.repository import Repository, iso

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """What an app was told about its payloads and its history."""

    max_payload_bytes: int = 1_048_576
    history: str = "all"
    channel_prefix: str | None = None
    """Of the database's own channels, where it carries notices to other processes."""
    error_codes: ErrorCodes | None = None


class _Ambient(threading.local):
    hooks: Hooks | None = None


class Engine:
    """One app's database with everything the domain needs around it."""

    def __init__(
        self,
        database: Database,
        repository: Repository,
        types: JobTypes,
        notifier: Notifier,
        ids: Ids,
        settings: Settings,
    ) -> None:
        self.database = database
        self.repository = repository
        self.types = types
        self.notifier = notifier
        self.ids = ids
        self.settings = settings
        self.observer: Observer | None = None
        """Told of what happens, if somebody wants to know."""
        self._ambient = _Ambient()

    # Sessions

    def write(
        self,
        conn: object | None,
        work: Callable[[Session], T],
        *,
        recover: Callable[[Session], T | None] | None = None,
        single: bool = False,
    ) -> T:
        """Run `work` on the user's connection, or in a transaction of our own."""
        try:
            if conn is not None:
                return work(self.join(conn))
            return self.database.run(work, recover=recover, single=single)
        except Exception as error:
            self._explain(error)
            raise

    def read(self, conn: object | None, work: Callable[[Session], T]) -> T:
        with self.explained():
            if conn is not None:
                return work(self.database.join(conn, reading=True, hooks=self.ambient_hooks))
            with self.database.read() as session:
                return work(session)

    def join(self, conn: object) -> Session:
        return self.database.join(conn, hooks=self.ambient_hooks)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Replaces a driver's error that has a clear cause, such as missing tables, by one that says what to do."""
        try:
            yield
        except Exception as error:
            self._explain(error)
            raise

    def _explain(self, error: Exception) -> None:
        clear = explain(error, self.repository.names, remedy=self.database.remedy)
        if clear is not None:
            raise clear from error

    # Effects after the commit

    @property
    def ambient_hooks(self) -> Hooks | None:
        """The hooks of `app.hooks()` around this call, on this thread."""
        return self._ambient.hooks

    @contextmanager
    def hooks(self) -> Iterator[Hooks]:
        """Collects effects; inside another such block it is a part of that one."""
        outer = self.ambient_hooks
        if outer is not None:
            with outer.savepoint():
                yield outer
            return
        hooks = self._ambient.hooks = Hooks()
        try:
            yield hooks
        except BaseException:
            hooks.discard()
            raise
        finally:
            self._ambient.hooks = None
        hooks.flush()

    def announce(self, session: Session, notices: Sequence[Notice], ended: Callable[[], Sequence[str]] | None = None) -> None:
        """Tell others of a change when it is committed; `ended` gives the chains that have closed, which may be many."""
        if session.hooks is None:
            told = [*notices, *closed(ended())] if ended is not None else notices
            if told:
                self.notifier.notify_in_transaction(session, told)
            return
        if notices:
            session.hooks.on_commit(lambda: self.notifier.publish(notices))
        if ended is not None:
            session.hooks.on_commit(lambda: self.notifier.tell(Channel.CHAIN_CLOSED, ended))

    def channel_in_transaction(self, session: Session, channel: Channel) -> str | None:
        """The channel that a statement of this session itself should tell, since nobody tells us of its commit."""
        prefix = self.settings.channel_prefix
        return f"{prefix}_{channel.value}" if prefix is not None and session.hooks is None else None

    # Payloads

    def encode_input(self, job_type: JobType[Any, Any], value: object) -> str:
        return self._payload(job_type.encode_input(value), "invalid_input", job_type.name)

    def encode_output(self, type_name: str, value: object) -> str:
        known = self.types.find(type_name)
        text = known.encode_output(value) if known is not None else self._untyped(value, type_name)
        return self._payload(text, "invalid_output", type_name)

    @staticmethod
    def _untyped(value: object, type_name: str) -> str:
        try:
            return dump_json(value)
        except CodecError as error:
            raise JobTypeValidationError(
                "invalid_output", f"The output of {type_name!r} does not fit: {error}.", type_name=type_name
            ) from error

    def _payload(self, text: str, code: ValidationCode, type_name: str) -> str:
        limit = self.settings.max_payload_bytes
        # A character has at most four bytes: most texts need not be encoded to be measured.
        if len(text) * 4 > limit and (size := len(text.encode())) > limit:
            what = "input" if code == "invalid_input" else "output"
            raise JobTypeValidationError(
                code,
                f"The {what} of {type_name!r} has {size:,} bytes, more than max_payload_bytes ({limit:,}): keep large data "
                "elsewhere and put a reference to it here.",
                type_name=type_name,
            )
        if self.database.dialect == "postgres" and has_nul(text):
            raise JobTypeValidationError(
                code,
                f"The payload of {type_name!r} contains a NUL character, which PostgreSQL cannot store.",
                type_name=type_name,
            )
        return text

    def decode_job(self, job: Job) -> Job:
        """Turn the JSON texts of a record that was just read into values, in place."""
        known = self.types.find(job.type_name)
        job.__dict__["input"] = _decode(known.decode_input if known else None, job.input)
        if job.output is not None:
            job.__dict__["output"] = _decode(known.decode_output if known else None, job.output)
        return job

    def decode_chain(self, chain: Chain, *, deduplicated: bool = False) -> Chain:
        root, tail = self.types.find(chain.type_name), self.types.find(chain.tail_type_name)
        chain.__dict__["input"] = _decode(root.decode_input if root else None, chain.input)
        # A tail that was handed over has an output of its own only when it closed the chain.
        if chain.output is not None:
            chain.__dict__["output"] = _decode(tail.decode_output if tail else None, chain.output)
        chain.__dict__["deduplicated"] = deduplicated
        return chain


def _decode(decode: Callable[[str], Any] | None, text: str) -> Any:
    if decode is not None:
        try:
            return decode(text)
        except Exception:  # stored by another version of the type: show what is there
            pass
    try:
        return load_json(text)
    except Exception:  # inserted by hand, and no JSON at all
        return text


def schedule(at: datetime | None, after: Duration | None) -> tuple[str | None, float | None]:
    """When a job may start, as the queries take it: a time, or seconds from the database's now."""
    if at is not None and after is not None:
        raise ValueError("Give `at` or `after`, not both.")
    if after is not None:
        return None, seconds(after, "after")
    return (None if at is None else iso(instant(at, "at"))), None


def scheduled(type_names: Iterable[str]) -> list[Notice]:
    return [Notice(Channel.SCHEDULED, name) for name in type_names]


def closed(chain_ids: Iterable[str]) -> list[Notice]:
    return [Notice(Channel.CHAIN_CLOSED, chain_id) for chain_id in chain_ids]


def lost(job_ids: Iterable[str]) -> list[Notice]:
    return [Notice(Channel.OWNERSHIP_LOST, job_id) for job_id in job_ids]


def pending_types(freed: Sequence[Any]) -> list[Notice]:
    """Notices for the jobs that are ready to be claimed now."""
    return scheduled(f.type_name for f in freed if f.status is Status.PENDING)
