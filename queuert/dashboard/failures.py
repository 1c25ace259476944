"""What visitors are told when something goes wrong: a status, a sentence, and what to do next. Never a traceback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from werkzeug.exceptions import BadRequest, HTTPException, MethodNotAllowed, NotFound
from werkzeug.routing import RequestRedirect

from queuert.cli.messages import hide_secrets, message_of
from queuert.dashboard.settings import Settings
from queuert.errors import (
    BlockerReferenceError,
    ChainNotFoundError,
    DatabaseUnavailableError,
    InvalidCursorError,
    InvalidJobIdError,
    JobAlreadyCompletedError,
    JobNotFoundError,
    JobNotTriggerableError,
    JobStateError,
    JobTypeValidationError,
    QueuertError,
    SchemaVersionError,
    UnknownJobTypeError,
)

RETRY_AFTER: Final = 5  # seconds until the page of an outage looks again
TITLES: Final = {
    400: "That cannot be answered",
    401: "Who is there?",
    403: "Not allowed",
    404: "There is nothing here",
    405: "Not this way",
    409: "It has moved on",
    413: "Too much",
    500: "Something went wrong",
    503: "The database does not answer",
}
BAD_INPUT: Final = (InvalidCursorError, JobTypeValidationError)
NOT_THERE: Final = (JobNotFoundError, ChainNotFoundError, InvalidJobIdError, UnknownJobTypeError)
MOVED_ON: Final = (JobStateError, JobAlreadyCompletedError, JobNotTriggerableError, BlockerReferenceError)


class Failure(NamedTuple):
    """What is shown instead of the page."""

    status: int
    text: str
    headers: Sequence[tuple[str, str]] = ()
    # To be logged: nobody expected it.
    error: BaseException | None = None

    @property
    def title(self) -> str:
        return TITLES.get(self.status, "That did not work")

    @property
    def passes(self) -> bool:
        """Whether the page comes back by itself."""
        return self.status == 503


class BadInput(BadRequest):
    """The address or the form says something that cannot be meant."""


def explain(error: Exception, settings: Settings) -> Failure:
    """The page for an error."""
    if isinstance(error, HTTPException):
        return _http(error)
    if isinstance(error, NOT_THERE):
        return Failure(404, str(error))
    if isinstance(error, MOVED_ON):
        return Failure(409, f"Nothing was changed. {error}")
    if isinstance(error, BAD_INPUT):
        return Failure(400, str(error))
    again = [("Retry-After", str(RETRY_AFTER))]
    if isinstance(error, SchemaVersionError):
        return Failure(503, str(error), again)
    try:
        away = isinstance(error, DatabaseUnavailableError) or settings.find_app()._context.database.is_transient(error)
    except Exception:
        away = False
    if away:
        return Failure(503, hide_secrets(f"This page comes back by itself. {message_of(error)}"), again)
    if isinstance(error, QueuertError):
        return Failure(400, hide_secrets(str(error)))
    return Failure(500, "The log of the dashboard says what happened.", error=error)


def _http(error: HTTPException) -> Failure:
    if isinstance(error, RequestRedirect):
        return Failure(308, "It is elsewhere.", [("Location", error.new_url)])
    if isinstance(error, MethodNotAllowed):
        allowed = [("Allow", ", ".join(sorted(error.valid_methods or ())))]
        return Failure(405, "This address does not take that method.", allowed)
    if type(error) is NotFound:
        return Failure(404, "There is no such page. It may have been deleted, or the address is not whole.")
    headers = [("WWW-Authenticate", 'Bearer realm="queuert"')] if error.code == 401 else []
    return Failure(error.code or 500, str(error.description or error.name), headers)
