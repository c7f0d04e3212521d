"""The first start makes a superuser's token, and keeps it where only its owner and its URL get it."""

import asyncio
import json
import signal
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TypeVar

import pytest

from cli.conftest import Place
from cli.program import Program, Serving
from zndraw_joblib.cli.operator import first_start
from zndraw_joblib.server.http.tokens import digest
from zndraw_joblib.server.store import schema, tokens
from zndraw_joblib.server.store.database import Database
from zndraw_joblib.server.store.engine import open_database

Result = TypeVar("Result")
URL = "http://127.0.0.1:9999"


async def _in_database(file: Path, work: Callable[[Database], Awaitable[Result]]) -> Result:
    database = open_database(f"sqlite:///{file}")
    try:
        return await work(database)
    finally:
        await database.close()


def _add_token(file: Path, token: str) -> None:
    """Make a database with a superuser's token, as an earlier start would have."""

    async def add(database: Database) -> None:
        await schema.prepare(database)
        row = partial(tokens.add, name="earlier", digest=digest(token), is_superuser=True)
        await database.write(row)

    asyncio.run(_in_database(file, add))


def _first_start(file: Path) -> first_start.Keys:
    """Do what `serve` does before it serves."""
    return asyncio.run(_in_database(file, partial(first_start.prepare, url=URL)))


def _keep(program: Program, kept: dict[str, str]) -> None:
    program.credentials.parent.mkdir()
    program.credentials.write_text(json.dumps(kept))


def test_a_first_start_makes_a_token_that_the_commands_find(place: Place) -> None:
    """It is shown once, readable for nobody else, and good for a superuser's requests."""
    program, server = place.program, place.server
    token = program.kept()[server.url]
    assert program.credentials.stat().st_mode & 0o777 == 0o600
    assert program.credentials.parent.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in program.credentials.parent.iterdir()] == ["credentials.json"]
    assert server.said.count(token) == 1
    assert f"zndraw-joblib worker my_jobs.py --url {server.url}\n" in server.said
    assert token.encode() not in (program.folder / "zndraw-joblib.db").read_bytes()
    assert program.ok("workers", "--url", f"http://localhost:{server.port}/").startswith("worker\t")


def test_a_later_start_finds_the_token_that_was_kept(program: Program) -> None:
    """The same database on another port, on all addresses, needs no new token; no log has it."""
    _add_token(program.folder / "zndraw-joblib.db", "a-token")
    _keep(program, {"http://127.0.0.1:1": "another", "http://127.0.0.1:2": "a-token"})
    everywhere = "0.0.0.0"  # noqa: S104
    with Serving(program, "--host", everywhere, "--access-log", "--log-level", "debug") as server:
        assert program.kept() == {
            "http://127.0.0.1:1": "another",
            "http://127.0.0.1:2": "a-token",
            f"http://127.0.0.1:{server.port}": "a-token",
        }
        program.ok("jobs", "--url", server.url)
        done = server.stop()
    assert "GET /v1/joblib/rooms/default/jobs" in done.err
    assert "a-token" not in done.err


def test_a_fresh_database_replaces_the_token_of_its_url(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token of what was served there before is of no use any more; the others stay."""
    monkeypatch.setenv("ZNDRAW_JOBLIB_CREDENTIALS", str(program.credentials))
    _keep(program, {URL: "of-another-database", "http://127.0.0.1:1": "another"})
    keys = _first_start(program.folder / "fresh.db")
    assert keys.made
    assert keys.made.startswith("zj_")
    assert program.kept() == {URL: keys.made, "http://127.0.0.1:1": "another"}


def test_a_token_that_cannot_be_kept_is_still_told(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server runs, and says where the token could not go."""
    (program.folder / "file").touch()
    monkeypatch.setenv("ZNDRAW_JOBLIB_CREDENTIALS", str(program.folder / "file" / "credentials.json"))
    keys = _first_start(program.folder / "fresh.db")
    assert keys.made
    assert keys.trouble
    assert "could not be kept" in keys.trouble


def test_a_token_goes_to_its_own_url_alone(program: Program) -> None:
    """Another port or path of the same machine may be another user's."""
    seen: list[str | None] = []

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_error(404)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{other.server_port}"
        _keep(program, {"http://127.0.0.1:1": "mine", url: "other's"})
        places = (f"{url}/behind/a/path", f"http://localhost:{other.server_port}")
        done = program.each([["jobs", "--url", place] for place in places])
        other.shutdown()
    assert ["answered 404" in one.err for one in done] == [True, True]
    assert seen == [None, "Bearer other's"]


def test_a_configured_token_leaves_nothing_to_make(program: Program) -> None:
    """With ZNDRAW_JOBLIB_ADMIN_TOKEN no token is made, shown or kept. SIGTERM ends the server like Ctrl-C."""
    secret = "a-token-of-the-operator"
    with Serving(program, ADMIN_TOKEN=secret) as server:
        jobs = ["jobs", "--url", server.url]
        allowed, refused = program.each([[f"ZNDRAW_JOBLIB_TOKEN={secret}", *jobs], jobs])
        assert (allowed.code, refused.code) == (0, 1)
        assert "wants a token" in refused.err
        done = server.stop(signal.SIGTERM)
    assert done.code == 0
    assert "first start" not in done.err
    assert not program.credentials.exists()
