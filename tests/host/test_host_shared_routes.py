"""The queue's routes in several apps of a process: nothing of one app is another's."""

from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from fastapi import Depends, FastAPI, HTTPException
from fastapi.exceptions import FastAPIError

from zndraw_joblib import Identity, JobLib
from zndraw_joblib.server.db.database import Database
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.http.routing import Route

URL = "/v1/joblib/me"


async def current_user() -> Identity:
    """Return the only user."""
    return Identity("ada", is_superuser=False)


async def refuse() -> None:
    """Refuse every request."""
    raise HTTPException(418, "no coffee")


def routes_of(app: FastAPI) -> list[Route]:
    """Return the queue's routes of an app."""
    return [route for route in app.router.routes if isinstance(route, Route)]


async def test_apps_share_nothing(sqlite_template: Path) -> None:
    """Overrides, counts and a host's own dependencies are those of one app, whatever was mounted before."""
    plain, _, overridden = apps = [FastAPI(), FastAPI(dependencies=[Depends(refuse)]), FastAPI()]
    database = open_database(f"sqlite:///{sqlite_template}")
    for app in apps:
        JobLib(session_maker=database, identity=current_user).mount(app)
    overridden.dependency_overrides[current_user] = lambda: Identity("eva", is_superuser=True)
    async with AsyncExitStack() as stack:
        found = []
        for app in [*apps, plain]:
            transport = httpx.ASGITransport(app)
            client = await stack.enter_async_context(
                httpx.AsyncClient(transport=transport, base_url="http://test")
            )
            response = await client.get(URL)
            found.append((response.status_code, response.json().get("id")))
    await database.close()
    assert found == [(200, "ada"), (418, None), (200, "eva"), (200, "ada")]
    # Requests need nothing that FastAPI derives; the document does, from each app's own routes. The first
    # route shows at the mount whether FastAPI can use the identity.
    for app in apps:
        assert ["dependant" in vars(route) for route in routes_of(app)][:2] == [True, False]
        assert sum("dependant" in vars(route) for route in routes_of(app)) == 1
        assert "/v1/joblib/me" in app.openapi()["paths"]
        assert all("dependant" in vars(route) for route in routes_of(app))
    assert [len({id(route.counts) for route in routes_of(app)}) for app in apps] == [
        len(routes_of(plain))
    ] * 3


async def test_an_identity_that_fastapi_cannot_use_fails_at_the_mount(sqlite_template: Path) -> None:
    """And not when the first document is read."""

    async def of_path(folder: Database) -> Identity:
        return Identity(str(folder), is_superuser=False)

    database = open_database(f"sqlite:///{sqlite_template}")
    with pytest.raises(FastAPIError, match="Database"):
        JobLib(session_maker=database, identity=of_path).mount(FastAPI())
    await database.close()
