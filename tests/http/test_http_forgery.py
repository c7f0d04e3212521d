"""Pages of other sites cannot act with the cookies of a user."""

import re
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Cookie, FastAPI
from rest import V1, expect_problem
from starlette.middleware.cors import CORSMiddleware

from zndraw_joblib import Identity, JobLib, JobLibSettings
from zndraw_joblib.server.db.engine import open_database
from zndraw_joblib.server.http.pages import Dashboard

OWN = "http://test"
# Headers of a request, and whether it may change something.
REQUESTS: list[tuple[dict[str, str], bool]] = [
    ({}, True),
    ({"Origin": OWN}, True),
    ({"Origin": "https://test"}, True),  # a proxy has ended TLS
    ({"Origin": OWN, "Sec-Fetch-Site": "same-origin"}, True),
    ({"Origin": "http://inside:8000", "Sec-Fetch-Site": "same-origin"}, True),  # a proxy changed the host
    ({"Origin": OWN, "Host": "test:80"}, True),  # a proxy has added the port
    ({"Origin": "http://test:80", "Host": "test:81"}, False),
    ({"Origin": "http://["}, False),
    ({"Sec-Fetch-Site": "none"}, True),
    ({"Origin": "https://app.example"}, True),
    ({"Origin": "https://cors.example", "Sec-Fetch-Site": "cross-site"}, True),
    ({"Origin": "https://evil.example"}, False),
    ({"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, False),
    ({"Origin": "http://test.evil.example"}, False),
    ({"Origin": "http://test:81"}, False),
    ({"Origin": "http://sub.test", "Sec-Fetch-Site": "same-site"}, False),
    ({"Origin": "null"}, False),
    ({"Origin": "null", "Sec-Fetch-Site": "cross-site"}, False),
    ({"Sec-Fetch-Site": "cross-site"}, False),
    ({"Origin": "https://evil.example", "Authorization": "Bearer x"}, True),
    (
        {"Origin": "https://evil.example", "Authorization": "Basic eDp5"},
        False,
    ),  # browsers send it by themselves
    ({"X-Joblib-Read-Only": "1"}, False),
    ({"X-Joblib-Read-Only": "1", "Authorization": "Bearer x"}, False),
]


class OwnCors(CORSMiddleware):
    """A host may have a class of its own."""


async def _by_cookie(user: Annotated[str, Cookie()]) -> Identity:
    return Identity(user, is_superuser=True)


async def test_only_own_and_trusted_pages_act_with_cookies(sqlite_url: str) -> None:
    """Unsafe requests of other origins are refused before anything else happens; all may read."""
    app, database = FastAPI(), open_database(sqlite_url)
    app.add_middleware(OwnCors, allow_origins=["https://cors.example", "*"], allow_credentials=True)
    settings = JobLibSettings(trusted_origins=["https://app.example"])
    JobLib(session_maker=database, identity=_by_cookie, settings=settings).mount(app)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url=OWN, cookies={"user": "ann"}) as client,
    ):
        for headers, is_allowed in REQUESTS:
            response = await client.post(f"{V1}/workers", headers=headers)
            if is_allowed:
                assert response.status_code == 201, headers
            else:
                expect_problem(response, 403, "forbidden")
            for method in ("PUT", "PATCH", "DELETE"):
                response = await client.request(method, f"{V1}/workers/x", headers=headers)
                assert (response.status_code == 403) is (not is_allowed and method != "PUT"), headers
            for path in ("workers", "rooms/lab/events?after=0"):  # a stream needs no token beside the cookie
                assert (await client.get(f"{V1}/{path}", headers=headers)).status_code == 200, headers
        listed = (await client.get(f"{V1}/workers")).json()["total"]
    await database.close()
    assert listed == sum(is_allowed for _, is_allowed in REQUESTS)


async def test_the_page_is_below_a_path_of_the_host(sqlite_url: str, subtests: pytest.Subtests) -> None:
    """Its files need no identity, carry the policy, and name the API relative to themselves."""
    for path, api in [("/", "v1/joblib"), ("/queue", "../v1/joblib"), ("/a/queue/", "../../v1/joblib")]:
        with subtests.test(path=path, api=api):
            app, database = FastAPI(), open_database(sqlite_url)
            options: dict[str, Any] = {"read_only": True, "headers_module": "../who.js"}
            JobLib(session_maker=database, identity=_by_cookie).mount(app, dashboard=path, **options)
            base = f"{OWN}{path.rstrip('/')}"
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
                if path != "/":
                    moved = await client.get(base)
                    assert (moved.status_code, moved.headers["location"]) == (308, "queue/")
                for name, kind in {
                    "": "text/html",
                    "static/app.js": "text/javascript",
                    "static/style.css": "text/css",
                }.items():
                    found = await client.get(f"{base}/{name}")
                    assert found.status_code == 200, name
                    assert found.headers["content-type"].startswith(kind)
                    assert found.headers["content-security-policy"].startswith(
                        "default-src 'none'; script-src 'self';"
                    )
                    assert found.headers["x-content-type-options"] == "nosniff"
                    known = await client.get(
                        f"{base}/{name}", headers={"If-None-Match": found.headers["etag"]}
                    )
                    assert (known.status_code, known.content) == (304, b"")
                await _check_the_transfer(client, base)
                config = (await client.get(f"{base}/config.json")).json()
                assert config.pop("version")
                assert config == {
                    "api": api,
                    "identity": "host",
                    "read_only": True,
                    "title": "zndraw-joblib",
                    "headers": "../who.js",
                }
                for name in ("static/../../settings.py", "static/%2e%2e/vendor.mjs", "static/nothing.js"):
                    assert (await client.get(f"{base}/{name}")).status_code == 404, name
            assert (
                Path(__file__).parents[2].joinpath("src/zndraw_joblib/server/dashboard/vendor.mjs").exists()
            )
            await database.close()


async def _check_the_transfer(client: httpx.AsyncClient, base: str) -> None:
    """The page names its modules, so that they load at once, and sends them compressed: 120 kB in all."""
    index = (await client.get(f"{base}/")).text
    names = re.findall(r'(?:href|src)="(static/[^"]+)"', index)
    [release] = {name.split("/")[1] for name in names}
    assert f"static/{release}/pages/tasks.js" in names
    assert f"static/{release}/vendor/uplot.js" not in names
    size = 0
    for name in dict.fromkeys(names):
        plain, packed = [
            await client.get(f"{base}/{name}", headers={"Accept-Encoding": encoding})
            for encoding in ("identity", "br, gzip;q=0.5")
        ]
        assert plain.content == packed.content, name
        assert "content-encoding" not in plain.headers
        assert packed.headers["vary"] == "Accept-Encoding"
        assert packed.headers["cache-control"] == "max-age=31536000, immutable"
        size += int(packed.headers["content-length"])
    assert size < 120_000
    # The page of a server of another release, and a file without one, are read again.
    for path in ("static/0123456789ab@/app.js", "static/app.js"):
        other = await client.get(f"{base}/{path}")
        assert (other.status_code, other.headers["cache-control"]) == (200, "no-cache"), path


def test_a_path_of_the_page_begins_with_a_slash() -> None:
    """Any other path is refused with what is wrong."""
    with pytest.raises(ValueError, match="dashboard='queue' is no path"):
        Dashboard("queue", is_host=True, read_only=False)
