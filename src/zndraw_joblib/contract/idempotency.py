"""The header `Idempotency-Key`: the server applies requests with the same key once."""

import re

from zndraw_joblib.contract.problems import InvalidIdempotencyKey

IDEMPOTENCY_KEY = "Idempotency-Key"
MAX_KEY_LENGTH = 255
# A quoted string of RFC 8941, and a token without quotes, such as a UUID.
_STRING = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~:/=-]+")
_TEXT = re.compile(r"[ -~]+")


def parse_key(text: str) -> str:
    """Return the key in a header's value. Raises `InvalidIdempotencyKey`."""
    stripped = text.strip(" \t")
    quoted = _STRING.fullmatch(stripped)
    if quoted is None and not _TOKEN.fullmatch(stripped):
        raise InvalidIdempotencyKey(
            f"header.{IDEMPOTENCY_KEY}: {text[:100]!r} is not a quoted string like "
            '"8e03978e-40d5-43e8-bc93-6894a57f9324", nor a token like a UUID'
        )
    key = stripped if quoted is None else re.sub(r"\\(.)", r"\1", quoted[1])
    _check_length(key)
    return key


def format_key(key: str) -> str:
    """Return the header's value for a key. Raises `InvalidIdempotencyKey`."""
    _check_length(key)
    if not _TEXT.fullmatch(key):
        raise InvalidIdempotencyKey(
            f"header.{IDEMPOTENCY_KEY}: {key[:100]!r} has characters other than printable ASCII; remove them"
        )
    return '"' + re.sub(r'(["\\])', r"\\\1", key) + '"'


def _check_length(key: str) -> None:
    if not 0 < len(key) <= MAX_KEY_LENGTH:
        raise InvalidIdempotencyKey(
            f"header.{IDEMPOTENCY_KEY}: the key has {len(key)} characters; send 1 to {MAX_KEY_LENGTH}"
        )
