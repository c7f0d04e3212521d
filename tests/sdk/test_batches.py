"""One call of a job runs a batch of tasks, each with its own result, progress, log, fence and end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from sdk.batch_jobs import Measure, WaitTogether, Word, add, measure, measure_later, of_one_model
from sdk.jobs import Add
from sdk.test_cancelled_coroutines import end_elsewhere
from zndraw_joblib import Batch, BatchExtension, TaskContext, job
from zndraw_joblib.client.connection import Connection
from zndraw_joblib.jobs.extensions import check_job
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.policy import JobBatch
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.batches import BatchSizes, Waiting
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.serving import Runner
from zndraw_joblib.worker.tasks import ClaimedTask

Make = Callable[..., JobManager]


def run_all(worker: Make, room: str, tasks: list[Any], **options: Any) -> list[TaskResponse]:
    """Submit tasks before there is a worker that runs them, and return them when they have ended."""
    caller = worker()
    classes = list(dict.fromkeys(map(type, tasks)))
    for cls in classes:
        caller.register(cls, room=room)
    ids = [caller.submit(task, room=room) for task in tasks]
    manager = worker(Runner(), **options)
    for cls in classes:
        manager.register(cls, room=room)
    return [caller.wait_for(task_id, 60) for task_id in ids]


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("cls", [measure, measure_later], ids=["function", "coroutine"])
def test_a_batch_has_one_call_and_a_result_for_each_task(
    worker: Make, room: str, cls: Any, executor: str
) -> None:
    """In order, in threads, on the event loop and in processes; a batch has at most `max` tasks."""
    texts = ["a" * length for length in range(1, 11)]
    ended = run_all(worker, room, [cls.task(text=text) for text in texts], executor=executor)
    assert [task.result for task in ended] == [
        *[[length, 8, "small"] for length in range(1, 9)],
        *[[length, 2, "small"] for length in (9, 10)],
    ]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_bad_item_fails_alone(worker: Make, room: str, executor: str) -> None:
    """An exception that is returned, a payload that the class refuses, and a result that is not JSON."""
    words = [
        {"text": "good"},
        {"text": "bad", "how": "final"},
        {"text": "unclean"},
        {"text": "odd", "how": "object"},
        {"text": "fine"},
    ]
    caller = worker()
    caller.register(measure, room=room)
    job_name = next(iter(caller))
    ids = [caller.submit(job_name, word, room=room) for word in words]
    worker(Runner(), executor=executor).register(measure, room=room)
    ended = [caller.wait_for(task_id, 60) for task_id in ids]
    assert [task.status == TaskStatus.COMPLETED for task in ended] == [True, False, False, False, True]
    assert ended[0].result == ended[4].result == [4, 4, "small"]
    assert ended[1].error == "NonRetryable: bad"
    assert "this word is not accepted" in (ended[2].error or "")
    assert "cannot be sent as JSON" in (ended[3].error or "")


def test_one_task_of_a_batch_is_retried_alone(worker: Make, room: str) -> None:
    """By the policy of the job, or as the `Retry` that is returned says; each counts its own attempts."""
    tasks = [measure.task(text="a", how="wrong"), measure.task(text="b"), measure.task(text="c", how="later")]
    ended = run_all(worker, room, tasks)
    assert [(task.status, task.attempts) for task in ended] == [
        (TaskStatus.FAILED, 3),
        (TaskStatus.COMPLETED, 1),
        (TaskStatus.FAILED, 3),
    ]


def test_wrong_results_fail_all(worker: Make, room: str, subtests: pytest.Subtests) -> None:
    """The error says what was returned, and what to return; so does an exception that is raised."""
    expected = {
        "few": "returned 1 results: return a list with one result or exception for each of the 3 inputs",
        "none": "returned NoneType: return a list",
        "text": "returned str: return a list",
        "raise": "ValueError: all of them",
    }
    for how, text in expected.items():
        with subtests.test(how=how):
            tasks = [Measure(text="a", how=how) for _ in range(3)]
            ended = run_all(worker, f"{room}-{how}", tasks)
            assert [task.status for task in ended] == [TaskStatus.FAILED] * 3
            assert all(text in (task.error or "") for task in ended)


def test_each_parameter_is_a_list(worker: Make, room: str) -> None:
    """Of one value of each task."""
    ended = run_all(worker, room, [add.task(number, b=10) for number in range(3)])
    assert [task.result for task in ended] == [10, 11, 12]


def test_a_batch_has_equal_keys(worker: Make, room: str) -> None:
    """The other tasks are in other batches; all run."""
    words: list[Any] = [of_one_model.task(text="a", model=f"m{number % 3}") for number in range(20)]
    ended = run_all(worker, room, words)
    assert [task.result for task in ended] == [[word.model] for word in words]


def test_many_keys_and_long_runs_lose_no_task(worker: Make, room: str, tmp_path: Path) -> None:
    """Batches that wait too long are released, and claimed again."""
    words: list[Any] = [of_one_model.task(text="a", model=f"m{number}") for number in range(30)]
    assert [task.result for task in run_all(worker, room, words, concurrency=2)] == [
        [word.model] for word in words
    ]


def test_claims_ask_for_as_many_tasks_as_run_together() -> None:
    """After a release for fewer, and for more again while all run."""
    sizes, batches = BatchSizes(), {"job": Batch(max=8, key="/k")}
    tasks = [ClaimedTask(str(number), "job", "room", None) for number in range(8)]

    def size() -> int:
        return sizes.claimable(batches, may_wait=True)[0].max

    assert size() == 8
    sizes.released(batches, [Waiting(tasks[1:], 0.0, is_batch=True)])
    assert size() == 1
    for expected in (2, 4, 8, 8):
        assert sizes.is_full(batches, tasks[: size()], 1)
        assert size() == expected
    assert not sizes.is_full(batches, tasks[:3], 1)
    assert [one.only_full for one in sizes.claimable(batches, may_wait=False)] == [True]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_progress_and_log_are_those_of_each_task(
    worker: Make, room: str, api: Connection, executor: str
) -> None:
    """What the code prints is in the log of each task of the batch."""
    ended = run_all(worker, room, [measure.task(text=text) for text in "abc"], executor=executor)
    caller = worker()
    for number, task in enumerate(ended):
        read = caller.get_task(task.id)
        assert read.progress is not None
        assert (read.progress.current, read.progress.message) == (number, "abc"[number])
        lines = [line.text for line in RestApi(api).send(ops.GET_TASK_LOG, task_id=task.id).lines]
        assert lines == ["a batch of 3", f"this is {'abc'[number]}"]


def test_a_cancelled_task_leaves_the_others(worker: Make, room: str, api: Connection, tmp_path: Path) -> None:
    """Its event is set, and theirs are not; a task whose attempt has failed meanwhile runs again, alone."""
    gate = tmp_path / "gate"
    caller = worker()
    caller.register(Measure, room=room)
    ids = [caller.submit(Measure(text=text, gate=str(gate)), room=room) for text in "abcd"]
    manager = worker(Runner(), heartbeat_interval=0.1)
    manager.register(Measure, room=room)
    wait_until(Path(f"{gate}.reached").exists)
    end_elsewhere(manager, api, ids[1], TaskStatus.CANCELLED)
    end_elsewhere(manager, api, ids[2], TaskStatus.FAILED)
    gate.touch()
    ended = [caller.wait_for(task_id, 60) for task_id in ids]
    assert [(task.status, task.result) for task in ended] == [
        (TaskStatus.COMPLETED, ["a", 4, [False, True, True, False]]),
        (TaskStatus.CANCELLED, None),
        (TaskStatus.COMPLETED, ["c", 1, [False]]),
        (TaskStatus.COMPLETED, ["d", 4, [False, True, True, False]]),
    ]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_coroutine_is_cancelled_with_its_last_task(
    worker: Make, room: str, api: Connection, tmp_path: Path, executor: str
) -> None:
    """It runs on for the task that is left."""
    gate = tmp_path / "gate"
    caller = worker()
    caller.register(WaitTogether, room=room)
    ids = [caller.submit(WaitTogether(gate=str(gate)), room=room) for _ in range(2)]
    manager = worker(Runner(), heartbeat_interval=0.1, executor=executor)
    manager.register(WaitTogether, room=room)
    wait_until(Path(f"{gate}.reached").exists)
    end_elsewhere(manager, api, ids[0], TaskStatus.CANCELLED)
    assert not gate.exists()
    end_elsewhere(manager, api, ids[1], TaskStatus.CANCELLED)
    wait_until(gate.exists)


def test_a_killed_process_fails_its_batch(worker: Make, room: str) -> None:
    """Each task by its policy; the worker goes on."""
    tasks = [Measure(text=text, how="kill") for text in "ab"]
    ended = run_all(worker, room, tasks, executor="process")
    assert {task.status for task in ended} == {TaskStatus.FAILED}
    assert all("ended with exit code -9" in (task.error or "") for task in ended)
    assert [task.attempts for task in ended] == [3, 3]


def test_other_jobs_run_beside_batches(worker: Make, room: str) -> None:
    """In one worker with one slot."""
    tasks = [one for text in "abcdef" for one in (Measure(text=text), Add(a=1, b=ord(text)))]
    ended = run_all(worker, room, tasks)
    assert [task.result for task in ended[1::2]] == [1 + ord(text) for text in "abcdef"]
    assert [task.result[0] for task in ended[::2]] == list("abcdef")


def test_the_server_knows_how_a_job_is_put_together(worker: Make, api: Connection, room: str) -> None:
    """The worker that registers last says it; one that runs tasks one by one says that too."""

    @job(batch=Batch(max=9, wait_seconds=2.5, key="/text"), name="together")
    def together(text: list[str]) -> list[str]:
        return text

    @job(name="together")
    def apart(text: str) -> str:
        return text

    path = {"room_id": room, "name": f"{room}:jobs:together"}
    manager = worker()
    with pytest.raises(TypeError, match="batch"):
        manager.register(together, room=room, batch=Batch(max=3))
    manager.register(together, room=room)
    registered = RestApi(api).send(ops.GET_JOB, **path).batch
    assert registered == JobBatch(max=9, wait_seconds=2.5, key="/text")
    manager.disconnect()
    worker().register(apart, room=room)
    assert RestApi(api).send(ops.GET_JOB, **path).batch is None


def test_a_claim_by_hand_runs_a_batch_of_one(worker: Make, room: str) -> None:
    """Where a host claims and runs tasks itself."""
    manager = worker()
    manager.register(measure, room=room)
    task_id = manager.submit(measure.task(text="abc"), room=room)
    task = manager.claim()
    assert task is not None
    manager.start(task)
    manager.complete(task, Runner()(task))
    assert manager.get_task(task_id).result == [3, 1, "small"]


WRONG: dict[str, tuple[Callable[[], Any], str]] = {}


def wrong(text: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Add a definition that is refused with a text."""

    def add_it(define: Callable[[], Any]) -> Callable[[], Any]:
        WRONG[define.__name__] = define, text
        return define

    return add_it


@wrong("takes a batch and has a yield: return a list")
def generator() -> Any:
    """Yield results."""

    @job(batch=Batch(max=2))
    def each(words: list[Word]) -> Any:
        yield words

    return each


@wrong("takes a batch and has a yield: return a list")
def generator_of_a_class() -> Any:
    """Yield results in a class."""

    class Each(BatchExtension):
        job_batch = Batch(max=2)

        @classmethod
        async def run_batch(cls, inputs: list[Any]) -> Any:
            yield inputs

    return Each


@wrong("write word: list[…]")
def no_list() -> Any:
    """Take one value."""

    @job(batch=Batch(max=2))
    def one(word: Word) -> Any:
        return word

    return one


@wrong("take list[TaskContext]")
def one_task() -> Any:
    """Take one task."""

    @job(batch=Batch(max=2))
    def one(words: list[Word], task: TaskContext) -> Any:
        return words, task

    return one


@wrong("no payload has the key /modle of its batch; it has /how, /model, /text")
def misspelt_key() -> Any:
    """Name a field that does not exist."""

    @job(batch=Batch(max=2, key="/modle"))
    def one(words: list[Word]) -> Any:
        return words

    return one


@wrong("the batch must be a Batch(max=…), not 32")
def number() -> Any:
    """Give a number."""

    @job(batch=32)  # type: ignore[call-overload]
    def one(words: list[Word]) -> Any:
        return words

    return one


@wrong("has no job_batch: set job_batch = Batch(max=…)")
def no_batch() -> Any:
    """Set no batch."""

    class One(BatchExtension):
        @classmethod
        def run_batch(cls, inputs: list[Any]) -> Any:
            return inputs

    check_job(One)


@wrong("has no run_batch, so it is no job")
def no_code() -> Any:
    """Define no code."""

    class One(BatchExtension):
        job_batch = Batch(max=2)

    check_job(One)


@wrong("Batch has no 'maximum' (did you mean 'max'?)")
def misspelt_option() -> Any:
    """Misspell an option."""
    return Batch(maximum=3)  # type: ignore[call-arg]


def test_a_wrong_definition_is_refused_with_the_remedy(subtests: pytest.Subtests) -> None:
    """At the definition, or at the registration."""
    for name, (define, text) in WRONG.items():
        with subtests.test(name=name):
            with pytest.raises(TypeError) as raised:
                define()
            assert text in str(raised.value), raised.value
    with pytest.raises(ValueError, match="no JSON pointer into the payload"):
        Batch(max=2, key="model")
