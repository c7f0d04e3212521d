"""Following the events of a task, also through lost connections."""

from collections.abc import Callable

import pytest
from sdk.live import LiveServer
from tcp_proxy import TcpProxy

from client.both import Both
from client.jobs import Area, Steps
from zndraw_joblib.client.watching import EventParser, TaskEvent
from zndraw_joblib.wire.problems import TaskNotFound
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager

Make = Callable[..., JobManager]
UNKNOWN = "00000000-0000-4000-8000-000000000000"


async def test_the_events_of_a_task_end_with_it(queue: Both, worker: Make, room: str) -> None:
    """First a snapshot, then each change; an event of a task that has ended is its snapshot alone."""
    worker().register(Area, room=room)
    task = await queue.submit(Area())
    events: list[TaskEvent] = [event async for event in task.events()]
    assert events[0].kind == "snapshot"
    assert [event.status for event in events if event.status][-1] == TaskStatus.COMPLETED
    assert [event.n for event in events] == sorted(event.n for event in events)
    assert {event.status async for event in task.events()} == {TaskStatus.COMPLETED}
    with pytest.raises(TaskNotFound):
        [event async for event in (await queue.task(UNKNOWN)).events()]


async def test_no_event_is_lost_with_a_connection(
    open_queue: Callable[..., Both], server: LiveServer, worker: Make, room: str
) -> None:
    """While the connection is cut, the task goes on; the client gets each line once, and one snapshot."""
    Steps.gate.clear()
    worker(None).register(Steps, room=room)
    async with TcpProxy(server.port).running() as proxy:
        queue = open_queue(f"http://127.0.0.1:{proxy.port}", room=room)
        task = await queue.submit(Steps())
        events: list[TaskEvent] = []
        async for event in task.events():
            events.append(event)
            if event.kind == "snapshot":
                # Lines that arrive before the snapshot are not events.
                worker().register(Steps, room=room)
            if event.kind == "log" and not Steps.gate.is_set():
                assert proxy.cut() > 0
                Steps.gate.set()
        assert [event.kind for event in events].count("snapshot") == 1
        lines = [line["text"] for event in events if event.kind == "log" for line in event.data["lines"]]
        known = [line.text for line in await task.logs()]
        assert lines[-5:] == known[-5:] == [f"line {number}" for number in range(5, 10)]
        assert lines == known[len(known) - len(lines) :]
        numbers = [event.n for event in events[1:]]
        assert numbers == sorted(set(numbers))
        assert events[-1].status == TaskStatus.COMPLETED or await task.result(30) == "done"


def test_events_are_parsed_from_any_pieces() -> None:
    """Comments and unknown fields are ignored, several lines of data are joined, CRLF is a line break."""
    text = b'retry: 5\n\n: keep\nevent: log\nid: 7\ndata: {"a":\ndata: "\xc3\xa9"}\n\n'
    text += b"event: end\r\ndata:x\r\n\r\n"
    for size in (1, 7, len(text)):
        parser = EventParser()
        found = [
            event for start in range(0, len(text), size) for event in parser.feed(text[start : start + size])
        ]
        assert [(event.kind, event.id, event.data) for event in found] == [
            ("log", "7", ['{"a":', '"é"}']),
            ("end", "", ["x"]),
        ]
    with pytest.raises(ValueError, match="more than 16,777,216 bytes"):
        EventParser().feed(b"data: " + b"x" * 2**24)
