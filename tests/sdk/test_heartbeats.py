"""Heartbeats of a worker whose tasks leave its other threads little time."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from waiting import wait_until

from sdk.live import TOKEN, LiveServer
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.rest import RestApi

CONCURRENCY = 8
HEARTBEATS = 6
SCRIPT = """
import sys
from pathlib import Path
from zndraw_joblib import Extension, JobManager, connect

class Work(Extension):
    category = "analysis"
    def run(self, vis, **kwargs):
        while not Path("go").exists():
            sum(number * number for number in range(100_000))

url, token, room, concurrency = sys.argv[1:]
execute = lambda task: task.extension.run(None)
options = {"concurrency": int(concurrency), "heartbeat_interval": 1}
with connect(url, token) as api, JobManager(api, execute=execute, **options) as manager:
    manager.register(Work, room=room)
    manager.wait()
"""


def test_a_worker_that_computes_in_all_threads_stays(
    own_server: Callable[..., LiveServer], worker: Callable[..., JobManager], room: str, tmp_path: Path
) -> None:
    """Its threads compute in Python for several heartbeats; the server never counts it as silent."""
    # Many heartbeats: the server of this process, too, may get no time for some seconds.
    live = own_server(worker_timeout_seconds=20, sweeper_interval_seconds=0.2)
    with live.connect() as api, ExitStack() as stack:
        caller = worker(at=api)
        arguments = [sys.executable, "-c", SCRIPT, live.url, TOKEN, room, str(CONCURRENCY)]
        process = subprocess.Popen(arguments, cwd=tmp_path)
        stack.callback(process.wait)
        stack.callback(process.kill)
        [before] = wait_until(lambda: caller.workers(room).items, 60)
        job = f"{room}:analysis:Work"
        ids = [caller.submit(job) for _ in range(CONCURRENCY)]
        wait_until(lambda: caller.tasks(room, status=TaskStatus.RUNNING).total == CONCURRENCY, 60)
        seen = set()

        def has_sent_heartbeats() -> bool:
            [now] = caller.workers(room).items
            assert now.id == before.id
            seen.add(now.last_heartbeat)
            return len(seen) > HEARTBEATS

        wait_until(has_sent_heartbeats, 50, interval=0.05)
        (tmp_path / "go").touch()
        ended = [caller.wait_for(task_id, 60) for task_id in ids]
        cycles = RestApi(api).send(ops.GET_SWEEPER).cycles
    assert [(task.status, task.attempt, task.worker_id) for task in ended] == CONCURRENCY * [
        (TaskStatus.COMPLETED, 1, before.id)
    ]
    assert [cycle for cycle in cycles if cycle.stale] == []
