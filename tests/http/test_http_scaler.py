"""The scaler beside a server, with a launcher whose allocations a test moves on."""

from collections.abc import Mapping
from itertools import count

import httpx
import pytest
from rest import V1, register, submit

from zndraw_joblib.client.async_rest import AsyncRest
from zndraw_joblib.client.connection import AsyncConnection
from zndraw_joblib.wire.problems import JobNotFound
from zndraw_joblib.worker import scaler as scaler_module
from zndraw_joblib.worker.launchers import NAME_VARIABLE, AllocationState, LauncherError
from zndraw_joblib.worker.scale_plan import Bounds
from zndraw_joblib.worker.scaler import Safety, Scaler, Subject

JOB = "@global:modifiers:Rotate"


class Queueing:
    """Allocations that wait until a test changes their state; it refuses them while `refusal` is set."""

    about, jobs = "worker", ()

    def __init__(self) -> None:
        self.refusal = ""
        self.names: dict[str, str] = {}
        self.now: dict[str, AllocationState] = {}
        self.drained: list[str] = []
        self.past: dict[str, tuple[str, AllocationState]] | None = {}
        self._numbers = count(1)

    async def check(self) -> None:
        """Accept all."""

    async def submit(self, environment: Mapping[str, str]) -> str:
        """Let one more wait."""
        if self.refusal:
            raise LauncherError(self.refusal)
        allocation = str(next(self._numbers))
        self.names[allocation], self.now[allocation] = environment[NAME_VARIABLE], AllocationState.WAITING
        return allocation

    async def earlier(self, prefix: str) -> Mapping[str, tuple[str, AllocationState]]:
        """Return what an earlier run has left, unless that is unknown."""
        if self.past is None:
            raise LauncherError("Unable to contact slurm controller")
        assert prefix == "scale-"
        return self.past

    async def states(self) -> Mapping[str, AllocationState]:
        """Return the states."""
        return dict(self.now)

    async def reason(self, _: str) -> str:
        """Return the reason of all."""
        return "out of memory"

    async def drain(self, allocation: str) -> None:
        """Cancel one."""
        self.drained.append(allocation)
        self.now[allocation] = AllocationState.ENDED


async def no_variables() -> Mapping[str, str]:
    """Return no variables."""
    return {}


@pytest.fixture
async def scaler(client: httpx.AsyncClient) -> Scaler:
    """Return a scaler of up to eight workers, of which three may wait."""
    connection = AsyncConnection(str(client.base_url), None, 30.0)
    await connection.http.aclose()
    connection.http = client
    safety = Safety(submissions=3, starts=2, submit_seconds=0.001)
    bounds, subject = Bounds(8, backlog=3), Subject((JOB,))
    return Scaler(AsyncRest(connection), Queueing(), bounds, subject, no_variables, 300.0, safety)


async def test_allocations_wait_up_to_the_backlog_and_are_cancelled_without_need(
    client: httpx.AsyncClient, scaler: Scaler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest first. A worker that has registered is not counted again as one that is on its way."""
    launcher = scaler.launcher
    assert isinstance(launcher, Queueing)
    job = await register(client, without_workers="queue")
    await client.delete(f"{V1}/workers/{job['worker_id']}")
    tasks = [await submit(client, job) for _ in range(4)]
    await scaler.step()
    assert list(launcher.now) == ["1", "2", "3"]
    await scaler.step()
    assert len(launcher.now) == 3
    launcher.now["1"] = AllocationState.RUNNING
    await scaler.step()
    launcher.now["2"] = AllocationState.RUNNING
    await scaler.step()
    assert len(launcher.now) == 4
    launcher.now["2"] = AllocationState.WAITING
    await register(client, worker={"name": launcher.names["1"], "slots": 2})
    await scaler.step()
    # Two slots of this one and three that wait are enough for four tasks.
    assert (scaler.slots_per_worker, len(launcher.now), launcher.drained) == (2, 4, [])
    monkeypatch.setattr(scaler_module, "_PATIENCE_SECONDS", 0.0)
    for task in tasks[:2]:
        await client.patch(f"{V1}/tasks/{task['id']}", json={"status": "cancelled"})
    await scaler.step()
    assert launcher.drained == ["4", "3", "2"]
    await scaler.step()
    assert list(scaler.own) == ["1"]


async def test_waiting_tasks_start_workers_for_a_job_without_any(
    client: httpx.AsyncClient, scaler: Scaler, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if it was forgotten, and another job of the command was never registered, which the log names."""
    scaler.subject = Subject((JOB, "@global:modifiers:New"))
    job = await register(client, without_workers="forget")
    task = await submit(client, job)
    await client.patch(f"{V1}/tasks/{task['id']}", json={"status": "cancelled"})
    await client.delete(f"{V1}/workers/{job['worker_id']}")
    await scaler.step()
    assert not scaler.own
    assert (await client.post(f"{V1}/tasks/{task['id']}/retry")).status_code == 200
    for _ in range(2):
        await scaler.step()
    assert len(scaler.own) == 1
    named = [record.message for record in caplog.records if "@global:modifiers:New" in record.message]
    assert len(named) == 1


async def test_refused_submissions_and_lost_starts_pause_until_it_is_resumed(
    client: httpx.AsyncClient, scaler: Scaler, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the reason of the system. An allocation that ends sooner than an idle worker has failed."""
    launcher = scaler.launcher
    assert isinstance(launcher, Queueing)
    await submit(client, await register(client, max_in_flight=2))
    for _ in range(3):
        await submit(client, {"full_name": JOB})
    caplog.set_level("INFO")
    launcher.refusal = "Invalid partition name"
    for _ in range(20):
        await scaler.step()
        scaler._next_submit = 0.0
    assert scaler.paused == "3 submissions in succession failed: Invalid partition name"
    assert [record.levelname for record in caplog.records if "Paused" in record.message] == ["ERROR"]
    launcher.refusal = ""
    await scaler.step()
    assert not launcher.now
    scaler.resume()
    for state in (AllocationState.ENDED, AllocationState.FAILED):
        await scaler.step()
        [one] = scaler.own
        launcher.now[one] = state
        scaler._next_submit = 0.0
    await scaler.step()
    assert scaler.paused is not None
    assert "2 allocations in succession ended before" in scaler.paused
    assert "out of memory" in scaler.paused


async def test_allocations_of_an_earlier_run_are_not_started_again(
    client: httpx.AsyncClient, scaler: Scaler
) -> None:
    """They count as the scaler's own. While they are unknown, nothing starts; a past start has not failed."""
    launcher = scaler.launcher
    assert isinstance(launcher, Queueing)
    job = await register(client, without_workers="queue")
    await client.delete(f"{V1}/workers/{job['worker_id']}")
    for _ in range(3):
        await submit(client, job)
    launcher.past = None
    await scaler.step()
    assert not launcher.now
    launcher.past = {
        "7": ("scale-7", AllocationState.WAITING),
        "8": ("scale-8", AllocationState.WAITING),
        "9": ("scale-9", AllocationState.RUNNING),
    }
    launcher.now = {allocation: state for allocation, (_, state) in launcher.past.items()}
    await scaler.step()
    assert list(launcher.now) == ["7", "8", "9"]
    launcher.now["9"] = AllocationState.FAILED
    await scaler.step()
    assert (list(scaler.own), scaler._failed_starts) == (["7", "8", "1"], 0)


async def test_the_first_worker_shows_what_the_others_will_serve(
    client: httpx.AsyncClient, scaler: Scaler
) -> None:
    """If the jobs of the workers are unknown, one allocation starts, and others after it has registered."""
    launcher = scaler.launcher
    assert isinstance(launcher, Queueing)
    scaler.subject = Subject()
    job, other = await register(client), await register(client, "Other")
    for each in (job, job, job, other, other):
        await submit(client, each)
    for _ in range(2):
        await scaler.step()
        assert list(launcher.now) == ["1"]
    launcher.now["1"] = AllocationState.RUNNING
    await register(client, worker={"name": launcher.names["1"], "slots": 1})
    await scaler.step()
    assert scaler.subject.jobs == (JOB,)
    # Two slots serve this job, and three of its tasks wait.
    assert list(launcher.now) == ["1", "2"]


async def test_all_jobs_of_a_file_are_counted(client: httpx.AsyncClient, scaler: Scaler) -> None:
    """Also more than one request may name; those that were never registered are named once."""
    names = [f"Job{number:03}{'x' * 40}" for number in range(130)]
    jobs = tuple(f"@global:modifiers:{name}" for name in names)
    scaler.subject = Subject(jobs)
    assert len(scaler.subject.parts) > 1
    assert [job for part in scaler.subject.parts for job in part.jobs] == list(jobs)
    with pytest.raises(JobNotFound):
        await scaler.read_demand()
    worker = None
    for name in (names[0], names[-1]):
        fields = {} if worker is None else {"worker_id": worker}
        job = await register(client, name, **fields)
        worker = job["worker_id"]
        await submit(client, job)
    demand = await scaler.read_demand()
    assert (demand.queued, demand.desired_slots, demand.slots) == (2, 2, 1)
    assert demand.unknown_jobs == [*jobs[1:-1]]
