"""`db copy` is killed in the middle of a table and run again; a server on the copy finishes the tasks."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from waiting import wait_until

from cli.program import TIMEOUT, Program, RunningServer
from zndraw_joblib import NewTask, Queue

JOBS = """
from zndraw_joblib import job


@job
def double(n: int) -> int:
    return 2 * n
"""
# A batch has 2,000 rows: the first one is committed, and the second one waits for the lock of the test.
_DONE, _WAITING, _STOP_AT = 20, 2_200, 2_100
_LOCK = 42
_STOP = f"""
CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    PERFORM pg_advisory_xact_lock({_LOCK}); RETURN NEW;
END $$;
CREATE TRIGGER stop BEFORE INSERT ON joblib_task FOR EACH ROW WHEN (NEW.seq = {_STOP_AT})
    EXECUTE FUNCTION stop();
"""


def submit(queue: Queue, numbers: range) -> list[Any]:
    """Submit tasks of the job."""
    return list(queue.submit_many([NewTask("double", {"n": n}) for n in numbers]))


async def kill_in_the_middle(program: Program, copy: list[str], url: str) -> None:
    """Kill the copy while it waits with a part of the tasks, and run it again."""
    holder = await asyncpg.connect(url)
    try:
        await holder.execute(_STOP)
        await holder.execute(f"SELECT pg_advisory_lock({_LOCK})")
        process = program.start(*copy)
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = $1 AND NOT granted"
        while not await holder.fetchval(waiting, _LOCK):
            assert process.poll() is None, process.communicate()
            await asyncio.sleep(0.1)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.communicate()
        assert await holder.fetchval("SELECT count(*) FROM joblib_task") == 2_000
        refused = await asyncio.to_thread(program.error_of, "serve", "--port", "0", "--database-url", url)
        assert "a copy that has not ended" in refused
        await holder.execute("DROP TRIGGER stop ON joblib_task; DROP FUNCTION stop")
    finally:
        await holder.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_copy_continues_and_a_server_finishes_its_tasks(
    program: Program, postgres_url: str, tmp_path: Path
) -> None:
    """Nothing is lost or doubled: ids, results and tokens are the same."""
    (tmp_path / "my_jobs.py").write_text(JOBS)
    worker = ["worker", "my_jobs.py", "--concurrency", "8"]
    copy = ["db", "copy", "--from", "sqlite:///zndraw-joblib.db", "--to", postgres_url]
    with RunningServer(program) as server, Queue(server.url, server.token, room="lab") as queue:
        token = server.token
        with program.start(*worker, URL=server.url, TOKEN=token or "") as first:
            wait_until(lambda: bool(list(queue.jobs())), TIMEOUT)
            done = submit(queue, range(_DONE))
            assert [task.result(60) for task in done] == [2 * n for n in range(_DONE)]
            first.send_signal(signal.SIGINT)
            first.communicate()
        waiting = submit(queue, range(_DONE, _DONE + _WAITING))
        assert "in use by another server" in program.error_of(*copy)
    asyncio.run(kill_in_the_middle(program, copy, postgres_url))
    assert "joblib_task " in program.ok(*copy)
    with (
        RunningServer(program, "--database-url", postgres_url) as server,
        Queue(server.url, token, room="lab") as queue,
        program.start(*worker, URL=server.url, TOKEN=token or "") as second,
    ):
        assert [queue.task(task.id).result(60) for task in done] == [2 * n for n in range(_DONE)]
        results = [queue.task(task.id).result(120) for task in waiting]
        assert results == [2 * n for n in range(_DONE, _DONE + _WAITING)]
        last = submit(queue, range(1))[0].wait(60)
        second.send_signal(signal.SIGINT)
        second.communicate()
    assert last.status == "completed"
