"""Apps of one process share what FastAPI derives from the queue's routes, and nothing else."""

from contextlib import AsyncExitStack
from pathlib import Path

import httpx
from fastapi import Depends, FastAPI, HTTPException

from zndraw_joblib import Identity, JobLib
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


async def test_apps_share_only_what_is_derived(sqlite_template: Path) -> None:
    """Overrides, counts and a host's own dependencies are those of one app, whatever was mounted before."""
    plain, refusing, overridden = apps = [FastAPI(), FastAPI(dependencies=[Depends(refuse)]), FastAPI()]
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
    # Equal routes are copies of each other; those of a host with dependencies of its own are others.
    again = FastAPI()
    JobLib(session_maker=database, identity=current_user).mount(again)
    pairs = zip(routes_of(overridden), routes_of(again), strict=True)
    assert all(one.dependant is other.dependant and one is not other for one, other in pairs)
    pairs = zip(routes_of(overridden), routes_of(refusing), strict=True)
    assert not any(one.dependant is other.dependant for one, other in pairs)
    assert [len({id(route.counts) for route in routes_of(app)}) for app in apps] == [
        len(routes_of(plain))
    ] * 3
