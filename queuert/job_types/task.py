"""A task: a plain function as a kind of job. Its parameters are the input, by name; its return value is the output."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from queuert.codec import Codec, codec_for, codec_for_arguments
from queuert.errors import JobTypeValidationError
from queuert.job_types.handlers import task_types
from queuert.job_types.job_type import JobType

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from queuert.chains.new_chain import ChainOptions
    from queuert.model import Chain
    from queuert.running_job import Continuation, RunningJob

P = ParamSpec("P")
OutputT_co = TypeVar("OutputT_co", covariant=True)


class Task(JobType[dict[str, Any], OutputT_co], Generic[P, OutputT_co]):
    """A job type made of a plain function by `@app.task`. Called directly it is the function.

    Where an input is given, as to `start_chain` and `continue_with`, it is a dict by parameter name.
    """

    def __init__(self, name: str, function: Callable[P, OutputT_co], **definition: Any) -> None:
        self.function = function
        self._signature = inspect.signature(function)
        super().__init__(name, functools.partial(_run, function), **definition)
        self.__doc__ = function.__doc__
        self.__wrapped__: Any = function

    def _codecs(self, handler: object, input: object, output: object) -> tuple[Codec, Codec]:
        hints, required, output_type, names = task_types(self.function, output)
        return (
            codec_for_arguments(hints, required, what=f"the arguments of {self.name!r}", localns=names),
            codec_for(output_type, where=f"The output type of {self.name!r}", localns=names),
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> OutputT_co:  # type: ignore[override]  # as the function
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name!r}>"

    @overload  # type: ignore[override]  # with the parameters of the function
    def start(self: Task[P, Continuation], *args: P.args, **kwargs: P.kwargs) -> Chain[Any]: ...

    @overload
    def start(self, *args: P.args, **kwargs: P.kwargs) -> Chain[OutputT_co]: ...

    def start(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *args: P.args, **kwargs: P.kwargs
    ) -> Chain[Any]:
        """Start a chain that calls the function with these arguments, in a transaction of its own."""
        return self._app().start_chain(self, self.bind(*args, **kwargs))

    def using(self, *, conn: Any = None, **options: Unpack[ChainOptions]) -> TaskOptions[P, OutputT_co]:
        """The options of `start_chain`, for a call of `start`: `resize.using(conn=tx, after=60).start("a.png")`."""
        return TaskOptions(self, conn, options)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """The input that these arguments make. Defaults are left to the process that runs it."""
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise TypeError(f"These are not the arguments of {self.name}{self._signature}: {error}.") from None

    def encode_input(self, value: object) -> str:
        if value is not None and not isinstance(value, dict):
            raise JobTypeValidationError(
                "invalid_input",
                f"The input of the task {self.name!r} is a dict by parameter name, not {type(value).__name__}; "
                f"{self.name}.start(...) takes arguments.",
                type_name=self.name,
            )
        return super().encode_input({} if value is None else value)


class TaskOptions(Generic[P, OutputT_co]):
    """A task with options for its next chain."""

    def __init__(self, task: Task[P, OutputT_co], conn: Any, options: ChainOptions) -> None:
        from queuert.chains.new_chain import ChainOptions  # which is built on job types

        unknown = sorted(set(options) - ChainOptions.__required_keys__ - ChainOptions.__optional_keys__)
        if unknown:
            raise TypeError(f"{unknown[0]!r} is no option of a chain: the arguments of {task.name!r} go to start().")
        self._task = task
        self._conn = conn
        self._options = options

    @overload
    def start(self: TaskOptions[P, Continuation], *args: P.args, **kwargs: P.kwargs) -> Chain[Any]: ...

    @overload
    def start(self, *args: P.args, **kwargs: P.kwargs) -> Chain[OutputT_co]: ...

    def start(self, *args: P.args, **kwargs: P.kwargs) -> Chain[Any]:
        """Start a chain that calls the function with these arguments."""
        task = self._task
        return task._app().start_chain(task, task.bind(*args, **kwargs), conn=self._conn, **self._options)


def _run(function: Callable[..., Any], job: RunningJob[dict[str, Any]]) -> Any:
    return function(**job.input)
