"""The first start makes a superuser's token, and keeps it where only its owner and its URL get it."""

import asyncio
import json
import socket
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from cli.conftest import Place
from cli.program import Program, Serving
from zndraw_joblib.server.adapters.tokens import digest
from zndraw_joblib.server.store import schema, tokens
from zndraw_joblib.server.store.engine import open_database


def _add_token(file: Path, name: str, token: str) -> None:
    """Make a database with a superuser's token, as an earlier start would have."""

    async def add() -> None:
        database = open_database(f"sqlite:///{file}")
        await schema.prepare(database)
        await database.write(partial(tokens.add, name=name, digest=digest(token), is_superuser=True))
        await database.close()

    asyncio.run(add())


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
    _add_token(program.folder / "zndraw-joblib.db", "earlier", "a-token")
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


def test_a_fresh_database_replaces_the_token_of_its_url(program: Program) -> None:
    """The token of what was served there before is of no use any more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    _keep(program, {url: "of-another-database", "http://127.0.0.1:1": "another"})
    with Serving(program, "--database-url", "sqlite:///fresh.db", port=port) as server:
        kept = program.kept()
        assert kept == {url: kept[url], "http://127.0.0.1:1": "another"}
        assert kept[url] != "of-another-database"
        program.ok("jobs", "--url", url)
        assert "token create NAME --database-url URL" in server.said


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
    """With ZNDRAW_JOBLIB_ADMIN_TOKEN no token is made, shown or kept."""
    secret = "a-token-of-the-operator"
    with Serving(program, ADMIN_TOKEN=secret) as server:
        jobs = ["jobs", "--url", server.url]
        allowed, refused = program.each([[f"ZNDRAW_JOBLIB_TOKEN={secret}", *jobs], jobs])
        assert (allowed.code, refused.code) == (0, 1)
        assert "wants a token" in refused.err
        assert "first start" not in server.stop().err
    assert not program.credentials.exists()


def test_a_token_that_cannot_be_kept_is_still_shown(program: Program) -> None:
    """The server runs, and says where the token could not go."""
    (program.folder / "file").touch()
    program.env["ZNDRAW_JOBLIB_CREDENTIALS"] = str(program.folder / "file" / "credentials.json")
    with Serving(program) as server:
        said = server.stop().err
    assert "could not be kept" in said
    assert [line for line in said.splitlines() if line.startswith("  zj_")]
