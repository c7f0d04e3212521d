"""The measured servers, each in its own process."""

import argparse
import gc
import resource
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

TOKEN = "token-of-the-benchmark"
_START_SECONDS = 60.0


def allow_many_connections() -> None:
    """Raise the limit of open files of this process to its maximum."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextmanager
def serving(kind: str, database_url: str = "") -> Iterator[str]:
    """Run a server and yield its URL.

    `kind` is `noop`, `joblib`, `no-events` (without Socket.IO), or `probed`, which measures its pauses.
    """
    with serving_all((kind, database_url)) as [url]:
        yield url


@contextmanager
def serving_all(*servers: tuple[str, str]) -> Iterator[list[str]]:
    """Start servers at the same time, each of a kind and on a database, and yield their URLs."""
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for kind, database_url in servers:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            command = [sys.executable, "-m", "benchmarks.servers", kind, str(port), database_url]
            processes[f"http://127.0.0.1:{port}"] = subprocess.Popen(command)
        for url, process in processes.items():
            _wait_for(f"{url}/health/live", process)
        yield list(processes)
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.wait(timeout=20)


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"The server at {url} ended before it was ready")
        try:
            urllib.request.urlopen(url, timeout=1).close()  # noqa: S310
        except OSError:
            time.sleep(0.05)
        else:
            return
    sys.exit(f"The server at {url} did not become ready")


def _run() -> None:
    import uvicorn  # noqa: PLC0415 - only the server process needs them
    from fastapi import FastAPI  # noqa: PLC0415

    from zndraw_joblib.server.host.app import create_app  # noqa: PLC0415
    from zndraw_joblib.server.process.settings import ServerSettings  # noqa: PLC0415
    from zndraw_joblib.wire.messages import TaskSubmitRequest  # noqa: PLC0415

    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("port", type=int)
    parser.add_argument("database_url")
    arguments = parser.parse_args()
    if arguments.kind == "noop":
        app = FastAPI()

        @app.post("/noop/{room}/{name}", status_code=202)
        async def noop(room: str, name: str, body: TaskSubmitRequest) -> TaskSubmitRequest:
            return body

        @app.get("/health/live")
        async def live() -> dict[str, bool]:
            return {"ok": True}
    else:
        settings = ServerSettings(
            database_url=arguments.database_url,
            admin_token=TOKEN,
            long_poll_max_wait_seconds=600,
            max_streams_per_user=10_000,
        )
        app = create_app(settings, realtime=arguments.kind != "no-events")
        if arguments.kind == "probed":
            from benchmarks.loop_pauses import add_probe  # noqa: PLC0415

            add_probe(app)
    allow_many_connections()
    gc.collect()
    gc.freeze()  # as `serve` does
    uvicorn.run(
        app,
        port=arguments.port,
        log_level="warning",
        access_log=False,
        loop="uvloop",
        http="httptools",
        timeout_keep_alive=120,
    )


if __name__ == "__main__":
    _run()
