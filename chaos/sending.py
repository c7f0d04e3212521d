"""Requests that a load repeats until a server has accepted them."""

import asyncio
from contextlib import suppress
from typing import Any
from uuid import uuid4

import httpx

from zndraw_joblib.wire.operations import PREFIX

PAUSE_SECONDS = 0.3
_TIMEOUT_SECONDS = 10.0


async def send(client: httpx.AsyncClient, method: str, path: str, body: Any) -> Any:
    """Repeat a request with the same Idempotency-Key until it is accepted. Return the response's body."""
    headers = {"Idempotency-Key": f'"{uuid4()}"'}
    while True:
        with suppress(httpx.TransportError):
            response = await client.request(
                method, f"{PREFIX}/{path}", json=body, headers=headers, timeout=_TIMEOUT_SECONDS
            )
            if response.is_success:
                answer = response.json()
                # A job is not registered while its workers are lost.
                refused = [item for item in answer.get("results", []) if item["status"] >= 300]
                if not refused:
                    return answer
                headers = {"Idempotency-Key": f'"{uuid4()}"'}
            else:
                assert response.status_code in {404, 409, 429} or response.status_code >= 500, response.text
        await asyncio.sleep(PAUSE_SECONDS)
