"""The inputs and outputs of jobs: checked and turned into JSON on their way in, into the declared types on their way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from queuert.codec import CodecError, dump_json, has_nul, load_json
from queuert.errors import JobTypeValidationError, ValidationCode
from queuert.job_types import JobType, JobTypes
from queuert.model import Chain, Job


class Payloads:
    """Encodes and decodes for one app. `stores_nul` says whether its database can store a NUL character in text."""

    def __init__(self, types: JobTypes, *, max_bytes: int, stores_nul: bool) -> None:
        self._types = types
        self._max_bytes = max_bytes
        self._stores_nul = stores_nul

    @property
    def max_bytes(self) -> int:
        return self._max_bytes

    def encode_input(self, job_type: JobType[Any, Any], value: object) -> str:
        return self._checked(job_type.encode_input(value), "invalid_input", job_type.name)

    def encode_output(self, type_name: str, value: object) -> str:
        known = self._types.find(type_name)
        text = known.encode_output(value) if known is not None else _untyped(value, type_name)
        return self._checked(text, "invalid_output", type_name)

    def _checked(self, text: str, code: ValidationCode, type_name: str) -> str:
        # A character has at most four bytes: most texts need not be encoded to be measured.
        if len(text) * 4 > self._max_bytes and (size := len(text.encode())) > self._max_bytes:
            what = "input" if code == "invalid_input" else "output"
            raise JobTypeValidationError(
                code,
                f"The {what} of {type_name!r} has {size:,} bytes, more than max_payload_bytes ({self._max_bytes:,}): keep "
                "large data elsewhere and put a reference to it here.",
                type_name=type_name,
            )
        if not self._stores_nul and has_nul(text):
            raise JobTypeValidationError(
                code,
                f"The payload of {type_name!r} contains a NUL character, which PostgreSQL cannot store.",
                type_name=type_name,
            )
        return text

    def decode_job(self, job: Job) -> Job:
        """Turn the JSON texts of a record that was just read into values, in place."""
        known = self._types.find(job.type_name)
        job.__dict__["input"] = _decode(known.decode_input if known else None, job.input)
        if job.output is not None:
            job.__dict__["output"] = _decode(known.decode_output if known else None, job.output)
        return job

    def decode_chain(self, chain: Chain, *, deduplicated: bool = False) -> Chain:
        """Turn the JSON texts of a record that was just read into values, in place."""
        root, tail = self._types.find(chain.type_name), self._types.find(chain.tail_type_name)
        chain.__dict__["input"] = _decode(root.decode_input if root else None, chain.input)
        # A tail that was handed over has an output of its own only when it closed the chain.
        if chain.output is not None:
            chain.__dict__["output"] = _decode(tail.decode_output if tail else None, chain.output)
        chain.__dict__["deduplicated"] = deduplicated
        return chain


def _untyped(value: object, type_name: str) -> str:
    try:
        return dump_json(value)
    except CodecError as error:
        raise JobTypeValidationError(
            "invalid_output", f"The output of {type_name!r} does not fit: {error}.", type_name=type_name
        ) from error


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
