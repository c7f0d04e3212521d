"""The proxies' configurations are valid; Caddy passes long-polls, event streams and WebSocket on."""

import re
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import crossplane
import httpx
import pytest
import socketio
import yaml
from cli.program import Program, RunningServer
from servers import free_port
from waiting import wait_until

from deploy.known import paths
from zndraw_joblib.cli.server.processes import KEEP_ALIVE_SECONDS
from zndraw_joblib.server.process.settings import ServerSettings

FOLDER = Path(__file__).parents[2] / "deploy"
CADDY = Path(sysconfig.get_path("scripts")) / "caddy"
TOKEN = "a-token-behind-the-proxy"
LONG_POLL_SECONDS = ServerSettings().long_poll_max_wait_seconds


def directives(block: list[dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """Yield all directives of an nginx configuration."""
    for one in block:
        yield one["directive"], one["args"]
        yield from directives(one.get("block", []))


def parsed(text: str, folder: Path) -> dict[str, Any]:
    """Return the configuration of nginx with a file of the folder conf.d."""
    (folder / "joblib.conf").write_text(text)
    (folder / "nginx.conf").write_text("events {}\nhttp { include joblib.conf; }\n")
    found: dict[str, Any] = crossplane.parse(str(folder / "nginx.conf"), combine=True, strict=True)
    return found


def test_nginx_knows_the_directives(tmp_path: Path) -> None:
    """Each has its context and its number of arguments. A misspelt one is found."""
    # The parser takes the values of a map for directives.
    text = re.sub(r"^(map .*\{)[^}]*\}", r"\1}", (FOLDER / "nginx.conf").read_text(), flags=re.MULTILINE)
    assert parsed(text, tmp_path)["errors"] == []
    assert parsed(text.replace("proxy_buffering", "proxy_bufering"), tmp_path)["errors"] != []


def test_nginx_waits_long_enough_and_buffers_nothing(tmp_path: Path) -> None:
    """A long-poll passes, the largest results too, and idle connections end before the servers end them."""
    [config] = parsed((FOLDER / "nginx.conf").read_text(), tmp_path)["config"]
    given = dict(directives(config["parsed"]))
    assert int(given["proxy_read_timeout"][0].removesuffix("s")) >= LONG_POLL_SECONDS + 10
    assert int(given["keepalive_timeout"][0].removesuffix("s")) < KEEP_ALIVE_SECONDS
    assert (
        int(given["client_max_body_size"][0].removesuffix("m")) * 2**20
        >= ServerSettings().max_task_result_bytes
    )
    assert given["proxy_buffering"] == given["proxy_request_buffering"] == ["off"]
    assert given["proxy_next_upstream"] == ["error", "timeout"]


def test_traefik_waits_long_enough_and_asks_a_path_that_exists() -> None:
    """The router, the service and the transport name each other."""
    http = yaml.safe_load((FOLDER / "traefik.yaml").read_text())["http"]
    [router] = http["routers"].values()
    balancer = http["services"][router["service"]]["loadBalancer"]
    timeouts = http["serversTransports"][balancer["serversTransport"]]["forwardingTimeouts"]
    assert int(timeouts["responseHeaderTimeout"].removesuffix("s")) >= LONG_POLL_SECONDS + 10
    assert int(timeouts["idleConnTimeout"].removesuffix("s")) < KEEP_ALIVE_SECONDS
    assert balancer["healthCheck"]["path"] in paths()
    assert balancer["responseForwarding"]["flushInterval"] == "-1ns"


@pytest.fixture
def behind_caddy(tmp_path: Path) -> Iterator[str]:
    """Start a server, and Caddy with the configuration of the deployment; return Caddy's URL."""
    program = Program(tmp_path, ADMIN_TOKEN=TOKEN, TOKEN=TOKEN)
    port = free_port()
    with RunningServer(program) as server:
        text = (FOLDER / "Caddyfile").read_text()
        text = text.replace(":8080 {", f"http://127.0.0.1:{port} {{")
        text = text.replace("server-1:8000 server-2:8000", f"127.0.0.1:{server.port}")
        assert not re.search(r"server-\d", text)
        (tmp_path / "Caddyfile").write_text(text)
        log = (tmp_path / "caddy.log").open("w")
        command = [CADDY, "run", "--config", tmp_path / "Caddyfile"]
        with log, subprocess.Popen(command, env={"HOME": str(tmp_path)}, stderr=log) as caddy:
            try:
                url = f"http://127.0.0.1:{port}"
                wait_until(lambda: is_ready(url), interval=0.1)
                yield url
            finally:
                caddy.terminate()


def is_ready(url: str) -> bool:
    """Return whether the server answers through the proxy."""
    try:
        return httpx.get(f"{url}/health/ready").status_code == 200
    except httpx.TransportError:
        return False


def test_caddy_passes_everything_on(behind_caddy: str) -> None:
    """An event of a stream arrives while the stream is open, and so does one over WebSocket."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=f"{behind_caddy}/v1/joblib", headers=headers, timeout=60) as client:
        job = {"category": "analysis", "name": "Area", "schema": {}}
        assert client.put("/rooms/lab/jobs", json=job).status_code == 201
        socket = socketio.Client(reconnection=False, request_timeout=30)
        received: list[str] = []
        socket.on("task_status_event", lambda task: received.append(task["status"]))
        socket.connect(behind_caddy, auth={"token": TOKEN}, transports=["websocket"], wait_timeout=30)
        assert socket.call("join_room", {"room_id": "lab"}) == {}
        stream = {"Accept": "text/event-stream"}
        with client.stream("GET", "/rooms/lab/events", headers=stream) as events:
            lines = events.iter_lines()
            assert "event: snapshot" in lines
            task = client.post("/rooms/lab/tasks/lab:analysis:Area", json={"payload": {}})
            assert task.status_code == 202
            assert "event: status" in lines
        wait_until(lambda: received == ["pending"])
        socket.disconnect()
        waited = client.get(f"/tasks/{task.json()['id']}", headers={"Prefer": "wait=1"})
        assert waited.headers["Preference-Applied"] == "wait=1"
