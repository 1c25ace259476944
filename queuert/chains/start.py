"""Starting chains: check everything, deduplicate, insert, and connect to blockers.

Nothing is written before every value of the batch has been checked. On PostgreSQL a batch is one statement; keys add two,
blockers three, and a savepoint two more, however many chains there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, Union, overload

from queuert import observing
from queuert.context import Engine, schedule, scheduled
from queuert.errors import ChainNotFoundError, DuplicateJobIdError, JobTypeValidationError
from queuert.ids import Id
from queuert.job_types import InputOf, JobType, JobTypeOrName, check_blockers, check_entry
from queuert.model import Chain, Status
from queuert.notify.protocol import Channel, Notice
from queuert.options import UNSET, Dedup, Duration, _Unset, check_max_attempts, check_priority
from queuert.storage.protocol import Session

if TYPE_CHECKING:
    from typing_extensions import Unpack

InputT = TypeVar("InputT")
ChainRef = Union[Chain, Id]
"""A chain, or its id."""

FOREIGN_KEY_VIOLATION: Final = "23503"


class NextOptions(TypedDict, total=False):
    """The keyword options of a continuation."""

    id: Id | None
    at: datetime | None
    after: Duration | None
    priority: int | None
    max_attempts: int | _Unset | None
    blockers: Sequence[ChainRef] | None


class ChainOptions(NextOptions, total=False):
    """The keyword options of a new chain."""

    dedup: Dedup | None


@dataclass(frozen=True)
class NewChain:
    """A chain to be started, for `start_chains`."""

    job_type: JobType[Any, Any] | str
    input: object = None
    id: Id | None = field(default=None, kw_only=True)
    at: datetime | None = field(default=None, kw_only=True)
    after: Duration | None = field(default=None, kw_only=True)
    priority: int | None = field(default=None, kw_only=True)
    max_attempts: int | _Unset | None = field(default=UNSET, kw_only=True)
    dedup: Dedup | None = field(default=None, kw_only=True)
    blockers: Sequence[ChainRef] | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:
        # The generated one could not relate the input to the job type.
        @overload
        def __init__(self, job_type: JobType[InputT, Any], input: InputOf[InputT], **options: Unpack[ChainOptions]) -> None: ...

        @overload
        def __init__(self, job_type: JobType[None, Any], input: None = None, **options: Unpack[ChainOptions]) -> None: ...

        @overload
        def __init__(self, job_type: str, input: object = None, **options: Unpack[ChainOptions]) -> None: ...

        def __init__(self, job_type: JobType[Any, Any] | str, input: object = None, **options: Any) -> None: ...


class _Plan:
    """One chain of the batch, checked."""

    __slots__ = ("blockers", "dedup", "duplicate_of", "excluded", "explicit_id", "id", "item", "job_type", "status")

    def __init__(
        self,
        id: str,
        job_type: JobType[Any, Any],
        item: dict[str, Any],
        explicit_id: bool,
        dedup: Dedup | None,
        excluded: tuple[str, ...],
        blockers: tuple[str, ...],
    ) -> None:
        self.id = id
        self.job_type = job_type
        self.item = item
        """What is written; a default is left out."""
        self.explicit_id = explicit_id
        self.dedup = dedup
        self.excluded = excluded
        self.blockers = blockers
        self.duplicate_of: str | None = None
        self.status: Status
        """Since the last try."""


class Starter:
    """Starts chains."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def start(self, chains: Sequence[NewChain], conn: object | None, *, trace: str | None = None) -> list[Chain]:
        plans = self._plans(chains, trace)
        if not plans:
            return []
        if conn is not None:
            return self._engine.write(conn, lambda session: self._create(session, plans))
        result: list[Chain] = []

        def work(session: Session) -> list[Chain]:
            result[:] = self._create(session, plans)
            return result

        def recover(session: Session) -> list[Chain] | None:
            made = [plan for plan in plans if plan.duplicate_of is None]
            found = self._engine.repository.get_chains(session, [plan.id for plan in made])
            chains = [self._engine.decode_chain(found[plan.id]) for plan in made if plan.id in found]
            if len(chains) < len(made) or not all(map(_is_ours, made, chains)):
                return None
            return result or chains  # only a single statement can have got through without a result

        single = not any(plan.dedup or plan.blockers or (plan.explicit_id and len(plans) > 1) for plan in plans)
        return self._engine.write(None, work, recover=recover, single=single)

    def start_plain(self, job_type: JobTypeOrName, input: object, conn: object | None) -> Chain:
        """Start one chain without options, as most calls do: what `start` does around a batch would double its cost."""
        engine = self._engine
        if not engine.ids.are_unique:
            return self.start([NewChain(job_type, input)], conn)[0]
        known = engine.types.get(job_type)
        check_entry(known)
        identity, text = engine.ids.new(), engine.encode_input(known, input)
        if conn is not None:
            return engine.write(conn, lambda session: self._create_plain(session, identity, known, text))
        made: Chain | None = None

        def work(session: Session) -> Chain:
            nonlocal made
            made = self._create_plain(session, identity, known, text)
            return made

        def recover(session: Session) -> Chain | None:
            found = engine.repository.get_chains(session, [identity]).get(identity)
            return None if found is None else made or engine.decode_chain(found)

        return engine.write(None, work, recover=recover, single=True)

    def _create_plain(self, session: Session, identity: str, job_type: JobType[Any, Any], text: str) -> Chain:
        check_blockers(job_type, ())
        engine, name = self._engine, job_type.name
        channel = engine.channel_in_transaction(session, Channel.SCHEDULED)
        produced = observing.producing(engine, "start", [name], told=session.hooks is not None)
        created_at = engine.repository.insert_plain(
            session,
            {
                "id": identity,
                "type_name": name,
                "input": text,
                "priority": job_type.priority,
                "max_attempts": job_type.max_attempts,
                "trace": None if produced is None else produced.trace,
                "channel": channel,
            },
        )
        if channel is None:
            engine.announce(session, [Notice(Channel.SCHEDULED, name)])
        observing.started(session, produced, [identity], [name])
        return _new_chain(identity, job_type, text, Status.PENDING, created_at)

    def start_in(self, session: Session, chains: Sequence[NewChain]) -> list[Chain]:
        """Start chains in a transaction of the library's own that does other things too."""
        return self._create(session, self._plans(chains, None)) if chains else []

    def _plans(self, chains: Sequence[NewChain], trace: str | None) -> list[_Plan]:
        plans = [self._plan(chain, trace) for chain in chains]
        _check_batch(plans)
        return plans

    def _plan(self, chain: NewChain, trace: str | None) -> _Plan:
        engine = self._engine
        job_type = engine.types.get(chain.job_type)
        check_entry(job_type)
        at, after = (None, None) if chain.at is None and chain.after is None else schedule(chain.at, chain.after)
        dedup = chain.dedup
        if dedup is not None and not isinstance(dedup, Dedup):
            raise TypeError(f"dedup must be a Dedup, not {type(dedup).__name__}.")
        blockers = () if chain.blockers is None else check_blocker_ids(engine, chain.blockers, job_type.name)
        max_attempts, priority = chain.max_attempts, chain.priority
        identity = engine.ids.new() if chain.id is None else engine.ids.check(chain.id)
        item: dict[str, Any] = {
            "id": identity,
            "type_name": job_type.name,
            "input": engine.encode_input(job_type, chain.input),
            "max_attempts": job_type.max_attempts if isinstance(max_attempts, _Unset) else check_max_attempts(max_attempts),
        }
        if priority := job_type.priority if priority is None else check_priority(priority):
            item["priority"] = priority
        if at is not None:
            item["at"] = at
        if after is not None:
            item["after"] = after
        excluded: tuple[str, ...] = ()
        if dedup is not None:
            item["key"] = dedup.key
            excluded = tuple(engine.ids.check(chain_id(ref)) for ref in dedup.exclude_chain_ids)
        if blockers:
            item["blockers"] = len(blockers)
        if trace is not None:
            item["trace"] = trace
        return _Plan(identity, job_type, item, chain.id is not None, dedup, excluded, blockers)

    def _create(self, session: Session, plans: Sequence[_Plan]) -> list[Chain]:
        if not _may_be_refused_late(plans):
            return self._write(session, plans)
        with session.savepoint():  # what was written before the refusal is undone, and the user's transaction stays usable
            return self._write(session, plans)

    def _write(self, session: Session, plans: Sequence[_Plan]) -> list[Chain]:
        pending = Status.PENDING  # once: to look up the member of an enum takes longer than the rest of the loop
        for plan in plans:
            plan.duplicate_of, plan.status = None, pending
        made = plans
        if any(plan.dedup for plan in plans):
            self._deduplicate(session, plans)
            made = [plan for plan in plans if plan.duplicate_of is None]
        self._check_blockers(session, made)
        return self._records(session, plans, self._insert(session, made))

    def _deduplicate(self, session: Session, plans: Sequence[_Plan]) -> None:
        repository = self._engine.repository
        keyed = [(number, plan) for number, plan in enumerate(plans) if plan.dedup]
        keys = sorted({(plan.job_type.name, plan.item["key"]) for _, plan in keyed})
        repository.touch_keys(session, [{"type_name": name, "key": key} for name, key in keys])
        found = repository.find_duplicates(
            session,
            [
                {
                    "n": number,
                    "type_name": plan.job_type.name,
                    "key": plan.item["key"],
                    "scope": plan.dedup.scope if plan.dedup else None,
                    "since": plan.dedup.window_seconds if plan.dedup else None,
                    "exclude": list(plan.excluded),
                }
                for number, plan in keyed
            ],
        )
        # Within the batch the first of a key is created and the others get it.
        first: dict[tuple[str, str], list[str]] = {}
        for number, plan in keyed:
            siblings = first.setdefault((plan.job_type.name, plan.item["key"]), [])
            earlier = next((chain_id for chain_id in reversed(siblings) if chain_id not in plan.excluded), None)
            plan.duplicate_of = found.get(number) or earlier
            if plan.duplicate_of is None:
                siblings.append(plan.id)

    def _check_blockers(self, session: Session, plans: Sequence[_Plan]) -> None:
        named = {blocker for plan in plans for blocker in plan.blockers}
        if not named:
            for job_type in dict.fromkeys(plan.job_type for plan in plans):
                check_blockers(job_type, [])
            return
        types = {plan.id: plan.job_type.name for plan in plans}
        types |= blocker_types(self._engine, session, named - types.keys())
        for plan in plans:
            check_blockers(plan.job_type, [types[blocker] for blocker in plan.blockers])

    def _insert(self, session: Session, plans: Sequence[_Plan]) -> dict[str, datetime]:
        if not plans:
            return {}
        engine, repository = self._engine, self._engine.repository
        channel = engine.channel_in_transaction(session, Channel.SCHEDULED)
        names = [plan.job_type.name for plan in plans]
        produced = observing.producing(engine, "start", names, told=session.hooks is not None)
        if produced is not None:
            for plan in plans:
                plan.item["trace"] = produced.trace
        new_ids = engine.ids.are_unique and not any(plan.explicit_id for plan in plans)
        created = repository.insert_chains(session, [plan.item for plan in plans], channel, new_ids=new_ids)
        if len(created) < len(plans):
            taken = next(plan.id for plan in plans if plan.id not in created)
            if created:  # cheaper than a savepoint around every batch in which all goes well
                repository.delete_chains(session, list(created))
            raise DuplicateJobIdError(taken)
        blocked = {plan.id: plan for plan in plans if plan.blockers}
        if blocked:
            traces = {plan.id: plan.item.get("trace") for plan in blocked.values()}
            connect_blockers(engine, session, {plan.id: plan.blockers for plan in blocked.values()}, traces)
            for freed in repository.settle_blockers(session, list(blocked)):
                blocked[freed.id].status = freed.status
        if channel is None:
            pending = Status.PENDING
            ready = {plan.job_type.name for plan in plans if plan.status is pending}
            engine.announce(session, scheduled(ready))
        observing.started(session, produced, [plan.id for plan in plans], names)
        return created

    def _records(self, session: Session, plans: Sequence[_Plan], created: Mapping[str, datetime]) -> list[Chain]:
        engine = self._engine
        wanted = {plan.duplicate_of for plan in plans if plan.duplicate_of is not None}
        existing = engine.repository.get_chains(session, sorted(wanted)) if wanted else {}
        records = []
        for plan in plans:
            if plan.duplicate_of is not None:
                found = existing[plan.duplicate_of]
                record = engine.decode_chain(Chain(**found.__dict__), deduplicated=True)
            else:
                record = _new_chain(plan.id, plan.job_type, plan.item["input"], plan.status, created[plan.id])
            records.append(record)
        return records


def _new_chain(identity: str, job_type: JobType[Any, Any], text: str, status: Status, created_at: datetime) -> Chain:
    """The record of a chain that was just inserted."""
    chain = object.__new__(Chain)  # filling the dict is several times as fast as a frozen __init__
    chain.__dict__.update(
        id=identity,
        type_name=job_type.name,
        status=status,
        input=job_type.decode_input(text),
        output=None,
        created_at=created_at,
        completed_at=None,
        tail_id=identity,
        tail_type_name=job_type.name,
        error_code=None,
        deduplicated=False,
    )
    return chain


def chain_id(ref: object) -> object:
    """The id of a chain or an id."""
    return ref.id if isinstance(ref, Chain) else ref


def check_blocker_ids(engine: Engine, blockers: Sequence[ChainRef] | None, type_name: str) -> tuple[str, ...]:
    if blockers is None:
        return ()
    if isinstance(blockers, (str, bytes, Chain)) or not isinstance(blockers, Iterable):
        raise TypeError("blockers must be a list of chains or ids.")
    ids = tuple(engine.ids.check(chain_id(blocker)) for blocker in blockers)
    if len(set(ids)) != len(ids):
        raise JobTypeValidationError(
            "invalid_blockers", f"The same chain is named twice as a blocker of {type_name!r}.", type_name=type_name
        )
    return ids


def blocker_types(engine: Engine, session: Session, ids: Iterable[str]) -> dict[str, str]:
    """The types of chains that are to be blockers; all must exist."""
    wanted = sorted(ids)
    found = engine.repository.get_chains(session, wanted) if wanted else {}
    for identity in wanted:
        if identity not in found:
            raise ChainNotFoundError(identity)
    return {identity: chain.type_name for identity, chain in found.items()}


def connect_blockers(
    engine: Engine, session: Session, blockers: Mapping[str, Sequence[str]], traces: Mapping[str, str | None]
) -> None:
    try:
        engine.repository.insert_blockers(
            session,
            [
                {"job_id": job_id, "chain_id": blocker, "index": index, "trace": traces.get(job_id)}
                for job_id, named in blockers.items()
                for index, blocker in enumerate(named)
            ],
        )
    except Exception as error:
        if getattr(error, "sqlstate", None) != FOREIGN_KEY_VIOLATION:
            raise
        # It was deleted after it was looked at; PostgreSQL names the key as "(blocked_by_chain_id)=(...)".
        named = re.search(r"\)=\((.+?)\)", str(error))
        raise ChainNotFoundError(named[1] if named else "named as a blocker") from error


def _may_be_refused_late(plans: Sequence[_Plan]) -> bool:
    """Whether a key or a job may be written before something else turns out to be wrong."""
    return any(plan.blockers or (plan.dedup and plan.explicit_id) for plan in plans)


def _is_ours(plan: _Plan, chain: Chain) -> bool:
    """Whether a chain that has the plan's id was made by it: an id that the caller chose may have been there before."""
    if not plan.explicit_id:
        return True
    return chain.type_name == plan.job_type.name and chain.input == plan.job_type.decode_input(plan.item["input"])


def _check_batch(plans: Sequence[_Plan]) -> None:
    """Ids must differ, and chains of one batch must not wait for each other in a circle."""
    by_id: dict[str, _Plan] = {}
    for plan in plans:
        if plan.id in by_id:
            raise DuplicateJobIdError(plan.id)
        by_id[plan.id] = plan
    settled: set[str] = set()
    for plan in plans:
        if not plan.blockers:
            continue
        path: list[tuple[str, list[str]]] = [(plan.id, list(plan.blockers))]
        waiting = {plan.id}
        while path:
            identity, rest = path[-1]
            if not rest:
                path.pop()
                waiting.discard(identity)
                settled.add(identity)
                continue
            blocker = rest.pop()
            if blocker in waiting:
                name = by_id[identity].job_type.name
                raise JobTypeValidationError(
                    "invalid_blockers", f"Chain {identity} would wait for itself, through its blockers.", type_name=name
                )
            if blocker in by_id and blocker not in settled:
                waiting.add(blocker)
                path.append((blocker, list(by_id[blocker].blockers)))
