"""Every endpoint needs an identity."""

import re

import httpx
from databases import on_both
from fastapi import FastAPI
from rest import UNKNOWN_ID, V1, AsUser, expect_problem, register, submit

from zndraw_joblib.server.admin import sql_operators
from zndraw_joblib.server.runtime.runtime import Runtime

LONG = "Bearer " + "x" * 10_000
VALUES = {
    "room_id": "lab",
    "name": "@global:modifiers:Rotate",
    "task_id": UNKNOWN_ID,
    "worker_id": UNKNOWN_ID,
    "provider_id": UNKNOWN_ID,
    "schedule": "nightly",
    "limit": "gpu",
    "group_id": UNKNOWN_ID,
    "webhook": "ci",
    "delivery": "1",
}


def operations(app: FastAPI) -> list[tuple[str, str]]:
    """Return the method and the path of every operation under the prefix."""
    return [
        (method.upper(), re.sub(r"{(\w+)}", lambda found: VALUES[found[1]], path))
        for path, methods in app.openapi()["paths"].items()
        if path.startswith(V1)
        for method in methods
    ]


async def test_every_operation_needs_an_identity(
    client: httpx.AsyncClient, app: FastAPI, as_user: AsUser
) -> None:
    """GET requests too. The 401 problem explains how to authenticate."""
    anonymous = await as_user()
    job = await register(client)
    await submit(client, job)
    requests = operations(app)
    assert len(requests) == 100
    for credentials in (None, "", "Bearer", "Bearer ", "Bearer x", "Basic YWRtaW46", "Bearer \xff\x01", LONG):
        headers = {} if credentials is None else {"Authorization": credentials.encode("latin-1")}
        for method, url in requests:
            response = await anonymous.request(method, url, json={"status": "cancelled"}, headers=headers)
            assert response.headers["www-authenticate"] == "Bearer"
            if method == "HEAD":
                assert (response.status_code, response.content) == (401, b"")
            else:
                assert expect_problem(response, 401, "unauthorized")["detail"]
    assert (await client.get(f"{V1}/rooms/lab/tasks")).json()["total"] == 1


async def test_the_identity_is_checked_first(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """It is checked before the room and before the shape, the size and the JSON of the body."""
    anonymous = await as_user()
    await register(client)
    for url in (f"{V1}/rooms/a:b/tasks/x", f"{V1}/rooms/lab/tasks/@global:modifiers:Rotate"):
        for content in (b"{}", b"[]", b"{", b"\xff", b"[" * 100_000):
            response = await anonymous.post(
                url, content=content, headers={"Content-Type": "application/json"}
            )
            expect_problem(response, 401, "unauthorized")
    expect_problem(await anonymous.get(f"{V1}/rooms/a:b/tasks", params={"limit": -1}), 401, "unauthorized")
    expect_problem(await anonymous.get(f"{V1}/tasks/x"), 401, "unauthorized")


async def test_a_revoked_token_is_refused(
    client: httpx.AsyncClient, as_user: AsUser, runtime: Runtime
) -> None:
    """A token that was removed before its first use is refused like an unknown one."""
    ada = await as_user("ada")
    await runtime.write(sql_operators.remove_token, name="ada")
    expect_problem(await ada.get(f"{V1}/workers"), 401, "unauthorized")


async def test_the_scheme_of_a_token_ignores_case(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """`bearer` and `BEARER` are the same scheme."""
    anonymous = await as_user()
    token = client.headers["authorization"].split()[1]
    for scheme in ("bearer", "BEARER"):
        response = await anonymous.get(f"{V1}/workers", headers={"Authorization": f"{scheme} {token}"})
        assert response.status_code == 200


@on_both
async def test_identities_are_compared_as_text(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """Names that differ in case or in one digit are different users."""
    ada, other, number = await as_user("ada"), await as_user("Ada"), await as_user("1")
    worker = (await ada.post(f"{V1}/workers")).json()
    for other_user in (other, number):
        expect_problem(await other_user.delete(f"{V1}/workers/{worker['id']}"), 403, "forbidden")


async def test_health_and_problem_pages_need_no_identity(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """Load balancers and readers of a problem's type have no token."""
    anonymous = await as_user()
    for url in ("/health/live", "/health/ready", "/v1/problems/unauthorized"):
        assert (await anonymous.get(url)).status_code == 200


async def test_no_user_has_the_id_of_the_server(client: httpx.AsyncClient, as_user: AsUser) -> None:
    """The owner id of internal workers is reserved."""
    impostor = await as_user("@internal")
    expect_problem(await impostor.get(f"{V1}/workers"), 403, "forbidden")
