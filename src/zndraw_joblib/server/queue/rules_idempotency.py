"""Apply requests with an `Idempotency-Key` once: a repeat gets the answer to the first request.

The answer is stored in the transaction of the request itself. Errors are not stored.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar
from uuid import UUID

from pydantic import TypeAdapter
from pydantic_core import from_json

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.process.ports import RequestKey
from zndraw_joblib.server.queue import rules_answers, rules_tasks, sql_idempotency, sql_jobs, sql_tasks
from zndraw_joblib.server.queue.rules_details import LogLimits
from zndraw_joblib.server.queue.rules_tasks import KnownJobs
from zndraw_joblib.server.queue.sql_idempotency import StoredAnswer
from zndraw_joblib.wire.masks import without_secrets
from zndraw_joblib.wire.messages import TaskResponse, WorkerResponse
from zndraw_joblib.wire.names import IDEMPOTENCY_KEY
from zndraw_joblib.wire.problems import (
    IdempotencyKeyReused,
    ProblemException,
    RequestInProgress,
    TaskNotFound,
)
from zndraw_joblib.wire.statuses import TaskStatus

# The payload and the result of a task may be large, and its row has them.
_LARGE = {"payload", "result"}


class _Keyed(Protocol):
    @property
    def key(self) -> RequestKey | None: ...


Item = TypeVar("Item", bound=_Keyed)
Result = TypeVar("Result")
P = ParamSpec("P")


class Repeat(NamedTuple, Generic[Result]):
    """The result of the first request with a key."""

    result: Result


class Answers(NamedTuple, Generic[Result]):
    """How to store results as text, and how to restore them."""

    encode: Callable[[Result], str]
    decode: Callable[[Transaction, str], Awaitable[Result]]


def _encode_task(task: TaskResponse) -> str:
    return task.model_dump_json(exclude=_LARGE)


def _encode_tasks(tasks: list[TaskResponse]) -> str:
    return f"[{','.join(map(_encode_task, tasks))}]"


async def _decode_tasks(tx: Transaction, text: str) -> list[TaskResponse]:
    return [await _decode_fields(tx, fields) for fields in from_json(text)]


async def _decode_task(tx: Transaction, text: str) -> TaskResponse:
    return await _decode_fields(tx, from_json(text))


async def _decode_fields(tx: Transaction, fields: dict[str, Any]) -> TaskResponse:
    task = await sql_tasks.by_id(tx, UUID(fields["id"]))
    if task is None:
        raise TaskNotFound(f"Task {fields['id']} was removed since the first request")
    result = task.result if fields["status"] == TaskStatus.COMPLETED else None
    payload = without_secrets(task.payload, task.masked)
    return TaskResponse.model_validate({**fields, "payload": payload, "result": result})


async def _decode_submit(tx: Transaction, item: rules_tasks.Submission, text: str) -> TaskResponse:
    fields = from_json(text)
    if "duplicate" in fields:
        return await _decode_fields(tx, fields)
    # The first request had the same payload.
    masks = await sql_jobs.masks(tx, [str(item.job)])
    payload = without_secrets(item.payload, masks.get(str(item.job)))
    return TaskResponse.model_validate({**fields, "payload": payload})


async def _decode_report(_: rules_tasks.Report, text: str) -> TaskResponse:
    return rules_answers.task_without_body(from_json(text))


def answers_of(kind: Any) -> Answers[Any]:
    """Return the functions that store and restore results of a type."""
    adapter: TypeAdapter[Any] = TypeAdapter(kind)

    async def decode(_: Transaction, text: str) -> Any:
        return adapter.validate_json(text)

    return Answers(lambda result: adapter.dump_json(result, by_alias=True).decode(), decode)


TASK = Answers(_encode_task, _decode_task)
TASKS = Answers(_encode_tasks, _decode_tasks)
WORKER: Answers[WorkerResponse] = answers_of(WorkerResponse)
NOTHING: Answers[None] = answers_of(None)


async def submit(
    tx: Transaction, items: Sequence[rules_tasks.Submission], jobs: KnownJobs | None = None
) -> Sequence[TaskResponse | Repeat[TaskResponse] | Exception]:
    """Insert tasks as `rules_tasks.submit` does; not those that an earlier attempt has inserted."""
    written: Mapping[int, TaskResponse] = {}
    for item in items:
        if item.task_id is not None:
            written = await rules_tasks.find_written(tx, items)
            break
    if not written:
        return await _submit(tx, items, jobs)
    rest = [item for index, item in enumerate(items) if index not in written]
    results = iter(await _submit(tx, rest, jobs) if rest else [])
    return [written[index] if index in written else next(results) for index in range(len(items))]


async def _submit(
    tx: Transaction, items: Sequence[rules_tasks.Submission], jobs: KnownJobs | None
) -> Sequence[TaskResponse | Repeat[TaskResponse] | Exception]:
    if jobs is not None and (results := await rules_tasks.submit_plain(tx, items, jobs)) is not None:
        return results
    work = rules_tasks.submit if jobs is None else partial(rules_tasks.submit, learn=jobs.learn)
    return await _apply(tx, items, work, _encode_task, partial(_decode_submit, tx))


async def report(
    tx: Transaction, items: Sequence[rules_tasks.Report], limits: Callable[[], LogLimits] = LogLimits
) -> Sequence[TaskResponse | Repeat[TaskResponse] | Exception]:
    """Apply reports as `rules_tasks.report` does. A stored answer has no payload either."""
    results = await rules_tasks.report_plain(tx, items, rules_tasks.most_body_bytes(items), limits())
    if len(results) == len(items):
        return list(results.values())
    rest = [item for index, item in enumerate(items) if index not in results]
    work = partial(rules_tasks.report, limits=limits())
    others = iter(await _apply(tx, rest, work, _encode_task, _decode_report) if rest else [])
    return [results[index] if index in results else next(others) for index in range(len(items))]


def once(
    key: RequestKey | None,
    answers: Answers[Result],
    work: Callable[Concatenate[Transaction, P], Awaitable[Result]],
) -> Callable[Concatenate[Transaction, P], Awaitable[Result]]:
    """Return a function like `work` that returns the result of the first request with this key."""
    if key is None:
        return work
    apply_once = once_or_repeat(key, answers, work)

    async def apply(tx: Transaction, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        result = await apply_once(tx, *args, **kwargs)
        return result.result if isinstance(result, Repeat) else result

    return apply


def once_or_repeat(
    key: RequestKey | None,
    answers: Answers[Result],
    work: Callable[Concatenate[Transaction, P], Awaitable[Result]],
) -> Callable[Concatenate[Transaction, P], Awaitable[Result | Repeat[Result]]]:
    """Return a function like `work`. Where the key was used before, its result is a `Repeat`."""
    if key is None:
        return work

    class Request(NamedTuple):
        key: RequestKey

    async def apply(tx: Transaction, /, *args: P.args, **kwargs: P.kwargs) -> Result | Repeat[Result]:
        async def run(_: Transaction, __: Sequence[Request]) -> Sequence[Result | Exception]:
            return [await work(tx, *args, **kwargs)]

        async def decode(_: Request, text: str) -> Result:
            return await answers.decode(tx, text)

        [result] = await _apply(tx, [Request(key)], run, answers.encode, decode)
        if isinstance(result, Exception):
            raise result
        return result

    return apply


async def _apply(
    tx: Transaction,
    items: Sequence[Item],
    work: Callable[[Transaction, Sequence[Item]], Awaitable[Sequence[Result | Exception]]],
    encode: Callable[[Result], str],
    decode: Callable[[Item, str], Awaitable[Result]],
) -> Sequence[Result | Repeat[Result] | Exception]:
    keys = {item.key.id: item.key for item in reversed(items) if item.key is not None}
    if not keys:
        return await work(tx, items)
    stored, in_progress = await _find(tx, keys)
    first = _first_indexes(items, in_progress.union(stored))
    fresh = [index for index, item in enumerate(items) if item.key is None or first.get(item.key.id) == index]
    new_results = await work(tx, [items[index] for index in fresh]) if fresh else []
    results: dict[int, Result | Exception] = dict(zip(fresh, new_results, strict=True))
    await _store(tx, [keys[id] for id in first], [results[index] for index in first.values()], encode)

    async def repeat(item: Item, key: RequestKey) -> Result | Repeat[Result] | Exception:
        answer = stored.get(key.id)
        if key.id in in_progress:
            return _in_progress()
        if key.fingerprint != (answer or keys[key.id]).fingerprint:
            return _reused()
        try:
            result = results[first[key.id]] if answer is None else await decode(item, answer.answer)
        except ProblemException as problem:
            return problem
        return result if isinstance(result, Exception) else Repeat(result)

    return [
        results[index] if item.key is None or index in results else await repeat(item, item.key)
        for index, item in enumerate(items)
    ]


def _first_indexes(items: Sequence[_Keyed], excluded: Set[UUID]) -> dict[UUID, int]:
    """Return the index of the first item with each key that is not known."""
    first: dict[UUID, int] = {}
    for index, item in enumerate(items):
        if item.key is not None and item.key.id not in excluded:
            first.setdefault(item.key.id, index)
    return first


async def _find(
    tx: Transaction, keys: Mapping[UUID, RequestKey]
) -> tuple[dict[UUID, StoredAnswer], set[UUID]]:
    """Return the stored answers, and the keys of requests that other transactions are applying."""
    answers, in_progress = await sql_idempotency.lock(tx, list(keys))
    now = await tx.now()
    return {
        id: answer for id, answer in answers.items() if answer.created_at > now - keys[id].keep
    }, in_progress


async def _store(
    tx: Transaction,
    keys: Sequence[RequestKey],
    results: Sequence[Result | Exception],
    encode: Callable[[Result], str],
) -> None:
    now = await tx.now()
    answers = [
        StoredAnswer(key.id, key.fingerprint, now, encode(result), key.user_id)
        for key, result in zip(keys, results, strict=True)
        if not isinstance(result, Exception)
    ]
    # Another transaction may have stored an answer between this transaction's first statement and its lock.
    if answers and not await sql_idempotency.add(tx, answers, now - keys[0].keep):
        raise _in_progress()


def _in_progress() -> RequestInProgress:
    return RequestInProgress(
        f"A request with the same {IDEMPOTENCY_KEY} is being processed; retry this one to get its response",
        headers={"Retry-After": "1"},
    )


def _reused() -> IdempotencyKeyReused:
    detail = (
        f"header.{IDEMPOTENCY_KEY}: this key was sent with another request; "
        "send a new key, or exactly the method, path, query and body of the first request"
    )
    error = {"loc": ["header", IDEMPOTENCY_KEY], "message": detail, "type": "idempotency_key_reused"}
    return IdempotencyKeyReused(detail, errors=[error])
