"""The first start makes a superuser's token, and keeps it where only its owner and its URL get it."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from cli.program import Program, Serving


def test_a_first_start_makes_a_token_that_the_commands_find(program: Program) -> None:
    """It is shown once, readable for nobody else, and good for a superuser's requests."""
    with Serving(program) as server:
        token = program.kept()[server.url]
        assert program.credentials.stat().st_mode & 0o777 == 0o600
        assert program.credentials.parent.stat().st_mode & 0o777 == 0o700
        assert [file.name for file in program.credentials.parent.iterdir()] == ["credentials.json"]
        assert program.ok("workers", "--url", server.url) == "worker\tjobs\tlast heartbeat\n"
        assert program.ok("jobs", "--url", f"http://localhost:{server.port}/") == "job\tworkers\n"
        done = server.stop()
    assert done.code == 0
    assert done.err.count(token) == 1
    assert f"zndraw-joblib worker my_jobs.py --url {server.url}\n" in done.err
    assert token.encode() not in (program.folder / "zndraw-joblib.db").read_bytes()


def test_a_second_start_uses_the_same_token(program: Program) -> None:
    """The same database on another port, on all addresses, needs no new token; the log has none."""
    with Serving(program) as server:
        server.stop()
    everywhere = "0.0.0.0"  # noqa: S104
    with Serving(program, "--host", everywhere, "--access-log", "--log-level", "debug") as other:
        kept = program.kept()
        program.ok("jobs", "--url", other.url)
        done = other.stop()
    assert other.url == f"http://127.0.0.1:{other.port}"
    assert kept == {server.url: kept[other.url], other.url: kept[other.url]}
    assert "GET /v1/joblib/rooms/default/jobs" in done.err
    assert kept[other.url] not in done.err


def test_a_fresh_database_replaces_the_token_of_its_url(program: Program) -> None:
    """The token of what ran there before is of no use."""
    with Serving(program) as server:
        server.stop()
    with Serving(program, "--database-url", "sqlite:///other.db", port=server.port) as other:
        assert program.kept() == {server.url: other.kept}
        assert other.kept != server.kept
        program.ok("jobs", "--url", other.url)
        assert "token create NAME --database-url" in other.stop().err
    with Serving(program, port=server.port) as first:
        refused = program.refused("jobs", "--url", first.url)
        assert str(program.credentials) in refused
        assert "none is kept here" in first.stop().err


def test_a_token_goes_to_its_own_url_alone(program: Program) -> None:
    """Another port of the same machine may be another user's."""
    seen: list[str | None] = []

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_error(404)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{other.server_port}"
        program.credentials.parent.mkdir()
        program.credentials.write_text(json.dumps({"http://127.0.0.1:1": "mine", url: "other's"}))
        refused = program.refused("jobs", "--url", f"{url}/behind/a/path")
        assert "answered 404" in refused
        program.refused("jobs", "--url", f"http://localhost:{other.server_port}")
        other.shutdown()
    assert seen == [None, "Bearer other's"]


def test_a_configured_token_leaves_nothing_to_make(program: Program) -> None:
    """With ZNDRAW_JOBLIB_ADMIN_TOKEN no token is made, shown or kept."""
    secret = "a-token-of-the-operator"
    with Serving(program, ADMIN_TOKEN=secret) as server:
        program.ok("jobs", "--url", server.url, TOKEN=secret)
        refused = program.refused("jobs", "--url", server.url)
        assert "wants a token" in refused
        assert "first start" not in server.stop().err
    assert not program.credentials.exists()


def test_a_token_that_cannot_be_kept_is_still_shown(program: Program) -> None:
    """The server runs, and says where the token could not go."""
    (program.folder / "file").touch()
    program.credentials = program.folder / "file" / "credentials.json"
    with Serving(program, CREDENTIALS=str(program.credentials)) as server:
        err = server.stop().err
    token = next(line.strip() for line in err.splitlines() if line.startswith("  zj_"))
    assert "could not be kept" in err
    with Serving(program, CREDENTIALS=str(program.credentials), port=server.port) as server:
        program.ok("jobs", "--url", server.url, TOKEN=token)
