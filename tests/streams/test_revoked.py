"""A stream token works only while its caller has access."""

from functools import partial

import httpx
from fastapi import FastAPI
from rest import V1, expect_problem

from streams.sse import STREAM
from zndraw_joblib.server.admin import sql_operators
from zndraw_joblib.server.queue.rules_tokens import digest
from zndraw_joblib.server.runtime.runtime import Runtime


async def test_a_stream_token_of_a_revoked_caller(app: FastAPI, client: httpx.AsyncClient) -> None:
    """A token that was made before its caller's own token was revoked opens no stream, also not as JSON."""
    runtime: Runtime = app.state.joblib.runtime
    own = "token-of-ada-for-the-tests"
    await runtime.write(partial(sql_operators.add_token, name="ada", digest=digest(own), is_superuser=False))
    url = f"{V1}/rooms/lab/events"
    made = await client.post(f"{url}/token", headers={"Authorization": f"Bearer {own}"})
    params = {"token": made.json()["token"]}
    client.headers.pop("Authorization")
    assert (await client.get(url, params=params)).status_code == 200
    expect_problem(await client.get(f"{V1}/rooms/other/events", params=params), 401, "unauthorized")
    await runtime.write(sql_operators.remove_token, name="ada")
    # Another token of the name does not revive it.
    await runtime.write(
        partial(sql_operators.add_token, name="ada", digest=digest("new"), is_superuser=False)
    )
    for headers in ({}, STREAM):
        expect_problem(await client.get(url, params=params, headers=headers), 401, "unauthorized")
