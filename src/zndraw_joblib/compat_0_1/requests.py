"""Hashes of provider requests."""

from typing import Any

from zndraw_joblib.contract import providers


def request_hash(params: dict[str, Any]) -> str:
    """Return the id of a request with these parameters: the SHA-256 of their canonical JSON, in hex."""
    return providers.request_hash(providers.canonical(params))
