"""A kind of job: its name, its handler, what goes in and out."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, Union, overload

from queuert.codec import Codec, CodecError, codec_for
from queuert.errors import JobTypeValidationError, ValidationCode
from queuert.job_types.failure import check_failure_type
from queuert.job_types.handlers import handler_types
from queuert.job_types.options import DEFAULT_BACKOFF, DEFAULT_LEASE, BackoffOption, JobTypeOrName, TypeOptions, first_set
from queuert.job_types.starting import StartsChains, app_of
from queuert.limit import Limit
from queuert.options import DEFAULT_MAX_ATTEMPTS, Lease

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from queuert.chains.new_chain import ChainOptions
    from queuert.job_types.registry import JobTypes
    from queuert.model import Chain
    from queuert.running_job import Continuation, RunningJob

InputT = TypeVar("InputT")
OutputT = TypeVar("OutputT")
InputT_contra = TypeVar("InputT_contra", contravariant=True)
OutputT_co = TypeVar("OutputT_co", covariant=True)
MAX_NAME_LENGTH: Final = 200


class _Never:
    """Nobody has one of these."""


# What may be passed as the input of a JobType[InputT, ...]. The second half is for mypy, which infers an argument whose
# type mentions a callable last: by then it knows InputT from the job type, and reads a literal as what is expected.
InputOf = Union[InputT, Callable[[InputT, _Never], _Never]]


def check_name(name: object) -> str:
    """The name of a job type, if it may be one."""
    if not isinstance(name, str):
        raise TypeError(f"The name of a job type must be a string, not {name!r}.")
    if not name or len(name) > MAX_NAME_LENGTH:
        raise ValueError(f"The name of a job type must have from 1 to {MAX_NAME_LENGTH} characters, not {len(name)}.")
    if name.startswith(":"):
        raise ValueError(f"The name of a job type must not start with a colon: {name!r}.")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        raise ValueError(f"The name of a job type must not contain control characters or surrogates: {name!r}.")
    return name


class JobType(Generic[InputT_contra, OutputT_co]):
    """A kind of job. It can still be called like the function it was made from."""

    def __init__(
        self,
        name: str,
        handler: Callable[[RunningJob[InputT_contra]], OutputT_co] | None = None,
        *,
        entry: bool = True,
        continues_with: Iterable[JobTypeOrName] | None = None,
        blockers: Iterable[JobTypeOrName] | None = None,
        input: Any = None,
        output: Any = None,
        on_failed: JobTypeOrName | None = None,
        limit: Limit | None = None,
        options: TypeOptions | None = None,
        registry: JobTypes | None = None,
    ) -> None:
        if not isinstance(entry, bool):
            raise TypeError(f"entry must be True or False, not {entry!r}.")
        own, inherited = options or TypeOptions(), registry.options if registry is not None else TypeOptions()
        self.name: Final[str] = check_name(name)
        self.handler: Final = handler
        self.entry: Final[bool] = entry
        self.continues_with: Final[tuple[str, ...] | None] = type_names(continues_with, "continues_with")
        self.blockers: Final[tuple[str, ...] | None] = type_names(blockers, "blockers")
        self.on_failed: Final[str | None] = _failure_type(name, on_failed)
        if limit is not None and not isinstance(limit, Limit):
            raise TypeError(f"limit must be a Limit, not {limit!r}.")
        self.limit: Final[Limit | None] = limit
        self.limit_name: Final[str | None] = None if limit is None else limit.name or self.name
        self.options: Final[TypeOptions] = own
        self._registry: Final[JobTypes | None] = registry

        self.max_attempts: Final[int | None] = first_set(own.max_attempts, inherited.max_attempts, default=DEFAULT_MAX_ATTEMPTS)
        self.priority: Final[int] = first_set(own.priority, inherited.priority, default=0)
        self.timeout: Final[float | None] = first_set(own.timeout, inherited.timeout, default=None)
        self.middleware: Final[tuple[object, ...]] = (*inherited.middleware, *own.middleware)
        self._backoff: BackoffOption | None = first_set(own.backoff, inherited.backoff, default=None)
        self._lease: Lease | None = first_set(own.lease, inherited.lease, default=None)

        self._input, self._output = self._codecs(handler, input, output)
        if handler is not None:
            self.__doc__ = handler.__doc__
            self.__wrapped__: Any = handler  # for inspect.signature and help()

    def _codecs(self, handler: Any, input: Any, output: Any) -> tuple[Codec, Codec]:
        input_type, output_type, names = handler_types(handler, input, output)
        return (
            codec_for(input_type, where=f"The input type of {self.name!r}", localns=names),
            codec_for(output_type, where=f"The output type of {self.name!r}", localns=names),
        )

    def __call__(self, job: RunningJob[InputT_contra]) -> OutputT_co:
        if self.handler is None:
            raise TypeError(f"The job type {self.name!r} was declared without a handler, so it cannot be called.")
        return self.handler(job)

    def __repr__(self) -> str:
        return f"<JobType {self.name!r}>"

    @overload
    def start(
        self: JobType[InputT, Continuation], input: InputOf[InputT], *, conn: Any = None, **options: Unpack[ChainOptions]
    ) -> Chain[Any]: ...

    @overload
    def start(
        self: JobType[InputT, OutputT], input: InputOf[InputT], *, conn: Any = None, **options: Unpack[ChainOptions]
    ) -> Chain[OutputT]: ...

    @overload
    def start(
        self: JobType[None, Continuation], input: None = None, *, conn: Any = None, **options: Unpack[ChainOptions]
    ) -> Chain[Any]: ...

    @overload
    def start(
        self: JobType[None, OutputT], input: None = None, *, conn: Any = None, **options: Unpack[ChainOptions]
    ) -> Chain[OutputT]: ...

    def start(self, input: Any = None, *, conn: Any = None, **options: Any) -> Chain[Any]:
        """Start a chain of this type in the app that defines it: `app.start_chain(this, input, ...)`."""
        return self._app().start_chain(self, input, conn=conn, **options)

    def _app(self) -> StartsChains:
        return app_of(self, self._registry)

    @property
    def has_extra_columns(self) -> bool:
        """Whether its jobs carry more than the shortest insert writes."""
        return self.on_failed is not None or self.limit is not None

    def resolve_backoff(self, worker_backoff: BackoffOption | None = None) -> BackoffOption:
        """How retries of this type back off on a worker with this option."""
        return next((each for each in (self._backoff, worker_backoff) if each is not None), DEFAULT_BACKOFF)

    def resolve_lease(self, worker_lease: Lease | None = None) -> Lease:
        """The lease of this type on a worker with this option."""
        return self._lease or worker_lease or DEFAULT_LEASE

    def encode_input(self, value: object) -> str:
        try:
            return self._input.encode(value)
        except CodecError as error:
            raise self._misfit("invalid_input", error) from error

    def decode_input(self, text: str) -> Any:
        try:
            return self._input.decode(text)
        except CodecError as error:
            raise self._misfit("invalid_input", error) from error

    def encode_output(self, value: object) -> str:
        try:
            return self._output.encode(value)
        except CodecError as error:
            raise self._misfit("invalid_output", error) from error

    def decode_output(self, text: str) -> Any:
        try:
            return self._output.decode(text)
        except CodecError as error:
            raise self._misfit("invalid_output", error) from error

    def _misfit(self, code: ValidationCode, error: CodecError) -> JobTypeValidationError:
        what = code.removeprefix("invalid_")
        return JobTypeValidationError(
            code, f"This {what} does not fit the job type {self.name!r}: {error}.", type_name=self.name
        )


def _failure_type(name: str, on_failed: JobTypeOrName | None) -> str | None:
    if on_failed is None:
        return None
    found = on_failed.name if isinstance(on_failed, JobType) else check_name(on_failed)
    if found == name:
        raise ValueError(f"{name!r} cannot name itself as on_failed: a failure would start the next.")
    if isinstance(on_failed, JobType):
        check_failure_type(name, on_failed)  # one that is named is looked up when a worker starts
    return found


def type_names(entries: Iterable[JobTypeOrName] | None, option: str) -> tuple[str, ...] | None:
    if entries is None:
        return None
    if isinstance(entries, (str, JobType)) or not isinstance(entries, Iterable):
        raise TypeError(f"{option} must be a list of job types or names, not {entries!r}.")
    names = (entry.name if isinstance(entry, JobType) else check_name(entry) for entry in entries)
    return tuple(dict.fromkeys(names))
