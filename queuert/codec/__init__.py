"""Values to JSON text and back, checked against a declared type in both directions.

A type is compiled once, when its job type is registered, into two closures: `dump` (value to plain JSON data) and
`load` (plain JSON data to value). What has no unambiguous JSON form is refused there and then, with a TypeError that
says where; what does not fit at run time is a CodecError with the path of the offending part.
"""

from queuert.codec.codecs import UNTYPED, Codec, codec_for, codec_for_arguments
from queuert.codec.hints import resolve_hints
from queuert.codec.text import MAX_DEPTH, CodecError, dump_json, has_nul, load_json

__all__ = [
    "MAX_DEPTH",
    "UNTYPED",
    "Codec",
    "CodecError",
    "codec_for",
    "codec_for_arguments",
    "dump_json",
    "has_nul",
    "load_json",
    "resolve_hints",
]
