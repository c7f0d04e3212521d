"""Send the requests of a test in the form of batches, so that both forms are held to the same rules."""

import json
from typing import Any

import httpx
import pytest
from rest import UNKNOWN_ID, V1


class BatchForm(httpx.ASGITransport):
    """Submits, claims and reports with the requests for many tasks; returns the response of a single one.

    Each item is sent between two items that are refused.
    """

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request."""
        path = request.url.path.removeprefix(V1)
        body = self._body(request)
        _, first, *rest = path.split("/")
        if not isinstance(body, dict) or "idempotency-key" in request.headers:
            return await super().handle_async_request(request)
        if request.method == "POST" and first == "rooms" and rest[1:2] == ["tasks"] and "payload" in body:
            refused = {"room_id": rest[0], "job_name": "@global:unknown:Unknown"}
            item = {**body, "room_id": rest[0], "job_name": "/".join(rest[2:])}
            return await self._one(request, "submit", "tasks", item, refused)
        if request.method == "POST" and path == "/tasks/claim":
            return await self._claim(request, body)
        if request.method == "PATCH" and first == "tasks" and len(rest) == 1:
            return await self._one(
                request, "report", "reports", {**body, "id": rest[0]}, {"id": UNKNOWN_ID, "status": "failed"}
            )
        return await super().handle_async_request(request)

    @staticmethod
    def _body(request: httpx.Request) -> Any:
        try:
            return json.loads(request.content or b"null")
        except ValueError:
            return None

    async def _one(
        self, request: httpx.Request, what: str, name: str, item: Any, refused: Any
    ) -> httpx.Response:
        response = await self._send(request, what, {name: [refused, item, refused]})
        if response.status_code != 200:
            return response
        before, result, after = json.loads(await response.aread())["results"]
        assert (before["status"], after["status"]) == (404, 404)
        if "problem" in result:
            media_type = {"Content-Type": "application/problem+json"}
            return httpx.Response(result["status"], headers=media_type, json=result["problem"])
        assert result["id"] == result["task"]["id"]
        # A client of a batch knows by the ids where its tasks are.
        headers = {"Location": f"{V1}/tasks/{result['id']}", "Retry-After": "1"} if what == "submit" else {}
        return httpx.Response(result["status"], headers=headers, json=result["task"])

    async def _claim(self, request: httpx.Request, body: Any) -> httpx.Response:
        response = await self._send(request, "claim", {**body, "max": 1})
        if response.status_code != 200:
            return response
        found = json.loads(await response.aread())
        tasks = found.pop("tasks")
        return httpx.Response(200, json={"task": tasks[0] if tasks else None, **found})

    async def _send(self, request: httpx.Request, what: str, body: Any) -> httpx.Response:
        headers = {name: value for name, value in request.headers.items() if name != "content-length"}
        url = request.url.copy_with(raw_path=f"{V1}/tasks/{what}".encode())
        return await super().handle_async_request(httpx.Request("POST", url, headers=headers, json=body))


@pytest.fixture(params=[httpx.ASGITransport, BatchForm], ids=["single", "batch"])
def transport(request: pytest.FixtureRequest) -> type[httpx.ASGITransport]:
    """Return how the clients of a test reach the server: with single requests, or with batches."""
    kind: type[httpx.ASGITransport] = request.param
    return kind
