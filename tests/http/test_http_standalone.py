"""The standalone app answers the queue's requests before its own layers, unless it has middleware."""

from functools import partial
from typing import Any

import httpx
from fastapi import FastAPI
from rest import UNKNOWN_ID, V1, AsUser

from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import ServerSettings

PATHS = [
    *("/tasks/claim", "/tasks/claim/", f"/tasks/{UNKNOWN_ID}", f"/workers/{UNKNOWN_ID}", "/nothing"),
    *("/rooms/lab/workers", "/rooms/lab/tasks/a:b:c", "/rooms/l%0Ab/tasks/%20"),
    *("/../../health/live", "/../problems/not-found"),
]


async def test_a_request_gets_the_response_of_all_layers(
    client: httpx.AsyncClient, app: FastAPI, as_user: AsUser
) -> None:
    """With any method and path, the status, headers and body are those of the whole app."""
    whole = httpx.AsyncClient(transport=httpx.ASGITransport(partial(FastAPI.__call__, app)))
    for path in PATHS:
        for method in ("GET", "POST", "PATCH", "HEAD", "OPTIONS", "DELETE"):
            url = f"http://test{V1}{path}"
            for headers in ({}, dict(client.headers)):
                content = b'{"worker_id": 1}'
                first = await (await as_user()).request(method, url, content=content, headers=headers)
                other = await whole.request(method, url, content=content, headers=headers)
                assert first.headers.pop("X-Request-ID"), (method, url)
                assert first.status_code == other.status_code, (method, url)
                assert dict(first.headers) == dict(other.headers), (method, url)
                assert first.content == other.content, (method, url)


async def test_cors_applies_to_all_requests(sqlite_url: str) -> None:
    """A page of an allowed origin may read the responses, problems too, and ask before it sends."""
    settings = ServerSettings(
        database_url=sqlite_url, admin_token="token-of-the-tests", cors_origins=["http://page"]
    )
    app = create_app(settings, realtime=False)
    async with app.router.lifespan_context(app):
        headers: dict[str, Any] = {"Origin": "http://page", "Authorization": "Bearer token-of-the-tests"}
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://test", headers=headers
        ) as client:
            for url in (f"{V1}/workers", f"{V1}/tasks/{UNKNOWN_ID}"):
                response = await client.get(url)
                assert response.headers["access-control-allow-origin"] == "http://page", response.text
                assert "X-Request-ID" in response.headers["access-control-expose-headers"]
            asked = {
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "x-request-id",
            }
            response = await client.options(f"{V1}/rooms/lab/tasks/a:b:c", headers=asked)
            assert response.status_code == 200
            assert "POST" in response.headers["access-control-allow-methods"]


async def test_no_page_has_foreign_scripts(client: httpx.AsyncClient) -> None:
    """`/docs` lists the operations without scripts, and its policy permits none."""
    response = await client.get("/docs")
    assert "/v1/joblib/tasks/claim" in response.text
    assert "<script" not in response.text
    assert "https://" not in response.text
    assert response.headers["content-security-policy"].startswith("default-src 'none';")
    assert (await client.get("/redoc")).status_code == 404
    assert (await client.get("/openapi.json")).status_code == 200
