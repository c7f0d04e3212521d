"""Which server and which token a client uses, and what it does when they do not work."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sdk.live import TOKEN, LiveServer
from sdk.test_idempotency import LossyProxy

from client.both import Both
from client.jobs import Area
from zndraw_joblib.client import connection
from zndraw_joblib.client.connection import ServerUnreachable, UnreadableCredentials, find_access
from zndraw_joblib.wire.problems import Unauthorized
from zndraw_joblib.worker.manager import JobManager

Make = Callable[..., JobManager]
LOADED = """
import sys, zndraw_joblib
zndraw_joblib.Queue("http://127.0.0.1:9", "x"), zndraw_joblib.AsyncQueue("http://127.0.0.1:9", "x")
print(sorted({"fastapi", "sqlalchemy", "socketio", "uvicorn", "zndraw_joblib.server"} & set(sys.modules)))
"""


@pytest.mark.parametrize("call", [lambda queue: queue.submit("a:analysis:B", {}), lambda queue: queue.jobs()])
async def test_a_server_that_was_never_reached_is_named_at_once(
    open_queue: Callable[..., Both], call: Callable[[Both], Any]
) -> None:
    """The error has the URL, without a password, and what to check; the request is not repeated."""
    with pytest.raises(
        ServerUnreachable, match=r"at http://127\.0\.0\.1:9 cannot be reached: .*serve.*argument"
    ):
        await call(open_queue("http://reader:hidden@127.0.0.1:9"))


async def test_requests_are_repeated_while_the_server_restarts(
    open_queue: Callable[..., Both], tmp_path: Path
) -> None:
    """A submit and a wait that begin while there is no server go on when it is back."""
    live = LiveServer(tmp_path)
    queue = open_queue(live.url)
    with live.connect() as api, JobManager(api) as manager:
        manager.register(Area, room="lab")
        first = await queue.submit(Area(), room="lab")
        await asyncio.to_thread(live.stop)
        submitted = asyncio.create_task(queue.submit(Area(), room="lab"))
        gathered = asyncio.create_task(queue.gather(first.inner, timeout=60))
        await asyncio.to_thread(live.start)
        second = await submitted
        for _ in range(2):
            claimed = await asyncio.to_thread(manager.claim, 30)
            assert claimed is not None
            await asyncio.to_thread(manager.start, claimed)
            await asyncio.to_thread(manager.complete, claimed, 5)
        assert await gathered == [5]
        assert await second.result(30) == 5
        await asyncio.to_thread(manager.disconnect)
    await asyncio.to_thread(live.stop)


async def test_a_lost_response_submits_one_task(
    open_queue: Callable[..., Both], server: LiveServer, worker: Make, room: str
) -> None:
    """The submit and the cancellation are sent again with the same key."""
    manager = worker(None)
    manager.register(Area, room=room)
    with LossyProxy(server.url) as proxy:
        queue = open_queue(proxy.url, room=room)
        task = await queue.submit(Area())
        await task.cancel()
        keys = [key.strip(chr(34)) for _, key in proxy.keys]
    assert keys[0] == keys[1] != keys[2] == keys[3]
    assert manager.tasks(room).total == 1
    again = await open_queue(server.url, room=room).submit(Area(), idempotency_key=keys[0])
    assert again.inner == task.inner


async def test_a_wrong_token_is_named_by_its_source(
    open_queue: Callable[..., Both], server: LiveServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says where the token comes from, and never has the token."""
    with pytest.raises(Unauthorized, match="rejected the token from the argument token") as caught:
        await open_queue(server.url, "wrong-token").jobs()
    assert "wrong-token" not in str(caught.value)
    with pytest.raises(Unauthorized, match=f"requires a token, and {home} has none"):
        await open_queue(server.url, None).jobs()
    monkeypatch.setenv("ZNDRAW_JOBLIB_TOKEN", "wrong-token")
    of_app = "rejected the token from ZNDRAW_JOBLIB_TOKEN.* an app that has the queue issues its own"
    with pytest.raises(Unauthorized, match=of_app):
        await open_queue(server.url, None).jobs()
    assert "wrong-token" not in repr(open_queue(server.url, None).inner)


async def test_url_and_token_come_from_the_environment_or_the_file(
    open_queue: Callable[..., Both], server: LiveServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's token is used for its URL only. The error of one that was replaced since says that."""
    connection.save_token(server.url, TOKEN)
    monkeypatch.setenv("ZNDRAW_JOBLIB_URL", server.url)
    assert isinstance(await open_queue(None, None).jobs(), list)
    assert find_access("http://example.com").token is None
    connection.save_token(server.url, "wrong-token")
    former = open_queue(server.url, None)
    connection.save_token(server.url, "another-token")
    with pytest.raises(Unauthorized, match="has another token for the server now: start the program again"):
        await former.jobs()
    monkeypatch.setenv("ZNDRAW_JOBLIB_TOKEN", TOKEN)
    assert isinstance(await open_queue(None, None).jobs(), list)


def test_a_broken_file_is_named(home: Path) -> None:
    """The file is not overwritten."""
    home.write_text("[]")
    with pytest.raises(UnreadableCredentials, match="Repair or remove it"):
        find_access()


def test_what_is_no_url_or_no_token_is_a_value_error(subtests: pytest.Subtests) -> None:
    """Before any request."""
    for url, token in [("localhost", None), ("http://a", "ä"), ("http://a", "")]:
        with subtests.test(url=url, token=token), pytest.raises(ValueError, match="is not"):
            find_access(url, token)


def test_a_client_loads_no_server_and_no_socketio() -> None:
    """An installation without the extra `server` has what a client needs."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
