"""Commands for operators against a server of an earlier release, which has none of their endpoints."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cli.program import Program

PROBLEM = {"type": "/v1/problems/not-found", "title": "Not Found", "status": 404, "detail": "Not Found"}
ID = "01a9b2c3-d4e5-7f60-8123-456789abcdef"


class OlderServer(BaseHTTPRequestHandler):
    """Answers each request as an earlier release answers an unknown path."""

    def do_GET(self) -> None:
        """Answer 404 with a problem."""
        body = json.dumps(PROBLEM).encode()
        self.send_response(404)
        self.send_header("Content-Type", "application/problem+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def older_url() -> Iterator[str]:
    """Return the URL of a server that lacks every endpoint."""
    with ThreadingHTTPServer(("127.0.0.1", 0), OlderServer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_each_command_says_what_the_server_lacks(program: Program, older_url: str) -> None:
    """The error line says that the server is older, and what to do."""
    program.env["ZNDRAW_JOBLIB_URL"] = older_url
    cases = {
        "searches for tasks": ["tasks", "--all-rooms"],
        "actions on several tasks": ["tasks", "bulk", "retry", "--preview"],
        "ids by prefix. Pass the whole id": ["cancel", ID[:10]],
        "details of workers": ["workers", ID],
        "the list of all jobs": ["jobs", "--all-rooms"],
        "the overview": ["top"],
        "the audit trail": ["audit"],
        "settings": ["config"],
        "retention": ["retention"],
    }
    for done, text in zip(program.run_all(list(cases.values())), cases, strict=True):
        assert (done.code, done.is_error_line) == (1, True), done
        assert "older release" in done.err
        assert text in done.err
