"""Cheap payload checks run at once; expensive ones run in another process and block no request."""

import asyncio
import select
import time
from collections.abc import AsyncIterator
from functools import partial
from math import inf
from typing import Any

import psutil
import pytest
from pydantic_core import to_json
from replica import SUBMITTER, TIMEOUT, Replica
from waiting import until

from zndraw_joblib.server.process.shared_limit import FairLock
from zndraw_joblib.server.queue import rules_payloads
from zndraw_joblib.server.queue.rules_payloads import SchemaCache, estimate_effort
from zndraw_joblib.server.queue.rules_tasks import Submission
from zndraw_joblib.server.runtime.payload_validator import LoopBudget, PayloadValidator
from zndraw_joblib.server.runtime.validator_process import ValidatorProcess
from zndraw_joblib.wire.messages import JobResponse, TaskResponse
from zndraw_joblib.wire.names import parse_job_name
from zndraw_joblib.wire.problems import (
    InvalidPayload,
    InvalidSchema,
    JobNotFound,
    ServiceUnavailable,
    TooManyRequests,
)

TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
        }
    },
}

DRAFT_4 = "http://json-schema.org/draft-04/schema#"


def bomb(depth: int) -> dict[str, Any]:
    """Return a small schema whose expansion doubles `depth` times."""
    doubled = {
        f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}, {"$ref": f"#/$defs/d{level + 1}"}]}
        for level in range(depth)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**doubled, f"d{depth}": {"type": "object"}}}


def submission(job: JobResponse) -> Submission:
    """Return an empty task of a job."""
    return Submission(SUBMITTER, "lab", parse_job_name(job.full_name), {})


def validator_process(others: set[psutil.Process]) -> psutil.Process:
    """Return the only child process that is not one of `others`: it checks payloads."""
    [process] = set(psutil.Process().children()) - others
    return process


@pytest.fixture
async def checker() -> AsyncIterator[PayloadValidator]:
    """Return a validator with a process of its own, whose checks may take long on a busy machine."""
    checker = PayloadValidator(check_seconds=TIMEOUT)
    yield checker
    await checker.close()


def test_the_effort_counts_every_subschema_as_often_as_it_is_used(subtests: pytest.Subtests) -> None:
    """A reference counts like its target; a recursive schema counts as infinite."""
    for schema, count in [
        ({}, 1),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, 3),
        ({"$ref": "#/$defs/a", "$defs": {"a": {}}}, 4),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"allOf": [{}, {}]}}}, 14),
        ({"enum": [1, 2, 3]}, 5),
        ({"pattern": "a"}, 1001),
        ({"patternProperties": {"a": {}, "b": {}}}, 2004),
        ({"multipleOf": 3}, 1),
        ({"multipleOf": 0.1}, 1001),
        ({"multipleOf": 10**40}, 1001),
        ({"format": "idn-email"}, 11),
        (TREE, inf),
        ({"$ref": "#"}, inf),
        ({"$ref": "#nowhere"}, inf),
        ({"$ref": "#/$defs/nowhere"}, inf),
        ({"$ref": 5}, inf),
        ({"$defs": {"a": {}, "%61": {}}, "$ref": "#/$defs/%61"}, inf),
        ({"$anchor": "a", "properties": {"b": {"$ref": "#a"}}}, inf),
        ({"$dynamicRef": "#/$defs/a", "$defs": {"a": {}}}, inf),
        ({"$recursiveRef": "#"}, inf),
        ({"$id": "http://a.test/b"}, 1),
        ({"properties": {"a": {"$id": "http://a.test/b"}}}, inf),
        ({"properties": {"a": {"$schema": DRAFT_4}}}, inf),
        ({"$schema": DRAFT_4, "properties": {"a": {"id": "http://a.test/b"}}}, inf),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, 1),
        ({"unevaluatedProperties": False}, inf),
        ({"unevaluatedItems": False}, inf),
        ({"format": "regex"}, inf),
        ({"enum": ["x" * 70_000]}, inf),
        ({"enum": [[] for _ in range(5000)]}, inf),
    ]:
        with subtests.test(schema=schema, count=count):
            assert estimate_effort(to_json(schema).decode()).subschemas == count


def test_a_schema_that_doubles_itself_is_counted_at_once() -> None:
    """Counting takes time in proportion to the schema, not to its expansion."""
    assert estimate_effort(to_json(bomb(60)).decode()).subschemas > 2**60


def test_expensive_checks_leave_the_event_loop(subtests: pytest.Subtests) -> None:
    """Many values to compare, also in pairs, many states of a pattern, many errors at a long path, or exact
    decimals; compiling patterns, or a long schema.
    """
    for case, schema, payload in [
        ("comparisons", {"items": {"enum": [None, *map(str, range(5000))]}}, {"x": ["4999"] * 5000}),
        ("states", {"pattern": "[ab]*a[ab]{800}c"}, {"x": "ab" * 2000}),
        ("faults", {"items": {"type": "string"}}, {"k" * 50_000: list(range(500))}),
        ("decimals", {"items": {"multipleOf": 1e-300}}, {"x": [1e300] * 500}),
        ("pairs", {"uniqueItems": True}, {"x": [2**63 + number for number in range(1000)]}),
        ("patterns", {"pattern": "[^/]{100}"}, {}),
        ("long", {"enum": ["x" * 9000]}, {}),
    ]:
        with subtests.test(case):
            text = to_json({"additionalProperties": schema}).decode()
            assert rules_payloads.check_quickly(text, payload).errors is None


@pytest.mark.processes
async def test_of_too_many_errors_only_the_first_is_returned(checker: PayloadValidator) -> None:
    """If the paths of all errors would take too much memory, one error is returned."""
    schema = to_json({"additionalProperties": {"items": {"type": "string"}}}).decode()
    fault = await checker.fault(schema, {"k" * 200_000: list(range(4000))})
    assert "not of type" in str(fault)
    assert fault is not None
    assert len((fault.problem.model_extra or {})["errors"]) == 1
    assert await checker.fault(schema, {"k": ["fits"]}) is None


@pytest.mark.processes
async def test_an_endless_check_blocks_no_other_request(replica: Replica) -> None:
    """Other requests are answered meanwhile; its submit is refused; the next check succeeds."""
    slow, quick = await replica.register("Slow", schema=bomb(60)), await replica.register("Quick")
    replica.runtime.payload_validator = endless = PayloadValidator(check_seconds=inf)
    checking = asyncio.create_task(replica.submit(slow))
    for _ in range(20):
        await replica.submit(quick)
    assert not checking.done()
    checking.cancel()
    await asyncio.wait([checking])
    await endless.close()
    replica.runtime.payload_validator = validator = PayloadValidator(check_seconds=0.5)
    with pytest.raises(InvalidPayload, match="takes more than"):
        await replica.submit(slow)
    validator._of_loop()._unbounded._check_seconds = TIMEOUT
    tree = await replica.register("Tree", schema=TREE)
    assert (await replica.submit(tree, {"name": "root"})).queue_position == 1
    await replica.runtime.finish()


@pytest.mark.processes
async def test_the_checks_of_one_request_are_bounded(replica: Replica) -> None:
    """No check begins after the limit; a payload that is left gets a 503, and is valid in a later request."""
    validator = PayloadValidator(check_seconds=1, request_seconds=0.1)
    replica.runtime.payload_validator = validator
    endless = await replica.register("Endless", schema=bomb(60))
    tree, plain = await replica.register("Tree", schema=TREE), await replica.register("Plain")
    made = await replica.runtime.submit_many([submission(job) for job in (endless, endless, tree, plain)])
    expected = [InvalidPayload, ServiceUnavailable, ServiceUnavailable, TaskResponse]
    assert [type(each) for each in made] == expected
    refused = made[2]
    assert isinstance(refused, ServiceUnavailable)
    assert "other payloads of the same request took 0.1 s; send fewer tasks" in str(refused)
    assert refused.headers == {"Retry-After": "5"}
    with pytest.raises(InvalidPayload, match=r"tasks\.0"):
        await replica.runtime.submit_all([submission(endless), submission(tree)])
    validator._of_loop()._unbounded._check_seconds = TIMEOUT
    [later] = await replica.runtime.submit_many([submission(tree)])
    assert isinstance(later, TaskResponse)
    await replica.runtime.finish()


@pytest.mark.processes
async def test_a_recursive_schema_is_checked_in_full(replica: Replica) -> None:
    """The result is the same in either process: valid payloads pass, and every error is listed."""
    tree = await replica.register("Tree", schema=TREE)
    fits = {"name": "a", "children": [{"name": "b", "children": []}]}
    assert (await replica.submit(tree, fits)).payload == fits
    with pytest.raises(InvalidPayload) as raised:
        await replica.submit(tree, {"name": "a", "children": [{"name": 1}, {"name": 2}]})
    faults = (raised.value.problem.model_extra or {})["errors"]
    assert [fault["pointer"] for fault in faults] == ["/children/0/name", "/children/1/name"]
    await replica.runtime.finish()


def test_an_error_of_alternatives_says_why_each_is_refused() -> None:
    """With the place in the value; a long value does not hide the reason."""
    text, number = {"type": "string"}, {"type": "number"}
    point = {"type": "object", "required": ["x"]}
    path = {"type": "object", "required": ["x"], "properties": {"x": {"items": number}}}
    schema = {"properties": {"a": {"anyOf": [text, number]}, "b": {"oneOf": [path, number]}, "c": point}}
    payload = {"a": None, "b": {"x": [1, "y"]}, "c": ["z" * 5000]}
    found = rules_payloads.list_errors(to_json(schema).decode(), payload)
    assert [fault["pointer"] for fault in found] == ["/a", "/b", "/c"]
    of_a, of_b, of_c = (fault["message"] for fault in found)
    assert of_a == 'no alternative fits: null is not of type "string"; or null is not of type "number"'
    assert of_b.startswith('no alternative fits: x/1: "y" is not of type "number"; or {"x":')
    assert len(of_c) == 1000
    assert of_c.endswith('zzz"] is not of type "object"')


HEIGHT_ONCE = [" (did you mean 'height'?)", ""]
CLOSED = {"properties": {"width": {}, "height": {}}, "additionalProperties": False}
OWN_ID = {"$id": "http://x/y", "items": {"$ref": "z"}, "$defs": {"q": {"$id": "z", **CLOSED}}}


@pytest.mark.parametrize(
    ("schema", "payload", "hints"),
    [
        (CLOSED, {"widht": 1}, [" (did you mean 'width'?)"]),
        (CLOSED, {"color": 1}, [""]),
        ({"items": {"$ref": "#/$defs/a~1b"}, "$defs": {"a/b": CLOSED}}, [{"hight": 1}] * 2, HEIGHT_ONCE),
        (OWN_ID, [{"widht": 1}], [""]),
        (CLOSED, {"w" * 51: 1}, [""]),
    ],
)
def test_an_unknown_field_has_the_name_of_a_near_one(schema: object, payload: Any, hints: list[str]) -> None:
    """The first one of a payload, in the part of the schema that refuses it."""
    faults = rules_payloads.list_errors(to_json(schema).decode(), payload)
    assert [fault["message"].partition("unexpected)")[2] for fault in faults] == hints
    assert rules_payloads.first_error(to_json(schema).decode(), payload) == faults[0]


@pytest.mark.processes
async def test_a_crashed_validator_process_is_replaced(checker: PayloadValidator) -> None:
    """The next check starts a new process."""
    schema, others = to_json(TREE).decode(), set(psutil.Process().children())
    await checker.fault(schema, {"name": "a"})
    child = validator_process(others)
    child.kill()
    await until(lambda: not child.is_running())
    assert "string" in str(await checker.fault(schema, {"name": 1}))


@pytest.mark.processes
async def test_a_check_that_is_cancelled_while_its_process_starts_leaves_no_answer_behind() -> None:
    """The next check has its own answer, from another process."""
    process, schema = ValidatorProcess(check_seconds=60, listing_seconds=60, max_waiting=2), to_json(TREE)
    check = asyncio.create_task(process.errors(schema.decode(), {"name": "a"}))
    await until(lambda: process.is_running)
    check.cancel()
    with pytest.raises(asyncio.CancelledError):
        await check
    assert len(await process.errors(schema.decode(), {"name": 1, "children": 1})) == 2
    assert await process.errors(schema.decode(), {"name": "a"}) == []
    await process.stop()


@pytest.mark.processes
async def test_an_answer_in_time_counts_after_a_pause_of_the_server() -> None:
    """The process has answered; the server's own process was paused for longer than a check may take."""
    process, tree = ValidatorProcess(check_seconds=TIMEOUT, listing_seconds=0, max_waiting=1), to_json(TREE)
    assert await process.errors(tree.decode(), {"name": "a"}) == []
    process._check_seconds = 0.01
    _, stdout = await process._start()
    pipe = stdout._transport.get_extra_info("pipe")  # type: ignore[attr-defined]
    check = asyncio.create_task(process.errors(tree.decode(), {"name": 1}))
    await asyncio.sleep(0)
    assert select.select([pipe], [], [], TIMEOUT)[0]  # in place of a pause, because it blocks the event loop
    time.sleep(0.02)  # noqa: ASYNC251 - as above
    assert [fault["pointer"] for fault in await check] == ["/name"]
    await process.stop()


@pytest.mark.processes
async def test_closing_ends_all_checks_and_leaves_no_process() -> None:
    """Neither of the check under way, which gets a 503, nor of those that wait, nor of a cancelled one."""
    others = set(psutil.Process().children())
    for is_cancelled in (False, True):
        process = ValidatorProcess(check_seconds=inf, listing_seconds=1, max_waiting=3)
        endless = to_json(bomb(60)).decode()
        checks = [asyncio.create_task(process.errors(endless, {}, user)) for user in "abc"]
        await until(lambda process=process: process.is_running)
        if is_cancelled:
            checks[0].cancel()
        await process.close()
        assert set(psutil.Process().children()) <= others
        first, *rest = await asyncio.gather(*checks, return_exceptions=True)
        assert isinstance(first, asyncio.CancelledError if is_cancelled else ServiceUnavailable)
        assert [type(answer) for answer in rest] == [ServiceUnavailable] * 2


@pytest.mark.processes
async def test_waiting_checks_are_bounded() -> None:
    """A check that exceeds the limit of waiting checks is refused with a 503."""
    checker = PayloadValidator(check_seconds=TIMEOUT, max_waiting=2)
    schema = to_json(TREE).decode()
    answers = await asyncio.gather(
        *[checker.fault(schema, {"name": "a"}, user) for user in "abc"], return_exceptions=True
    )
    assert [type(answer) for answer in answers] == [type(None), type(None), ServiceUnavailable]
    await checker.close()


@pytest.mark.processes
async def test_one_user_has_a_share_of_the_waiting_checks() -> None:
    """Its next check is a 429 with `Retry-After`, and those of another user wait."""
    checker = PayloadValidator(check_seconds=TIMEOUT, max_waiting=4, share=lambda limit: limit // 2)
    schema = to_json(TREE).decode()
    checks = [checker.fault(schema, {"name": "a"}, user) for user in ["busy"] * 3 + ["other"] * 2]
    *answers, refused, other, last = await asyncio.gather(*checks, return_exceptions=True)
    assert [*answers, other, last] == [None] * 4
    assert isinstance(refused, TooManyRequests)
    assert "its share (max_share_per_user of 4 in each process)" in str(refused)
    assert refused.headers == {"Retry-After": "5"}
    await checker.close()


async def test_users_that_wait_share_the_time_of_a_lock() -> None:
    """A user waits for one request of another, however many the other sends; a cancelled one is left out."""
    lock, log = FairLock(), []

    async def use(user: str) -> None:
        async with lock.hold(user):
            log.append(user)
            await asyncio.sleep(0)

    uses = [asyncio.create_task(use(user)) for user in ["busy"] * 4 + ["ada", "bob", "ada", "eve"]]
    await asyncio.sleep(0)
    uses[-1].cancel()
    await asyncio.wait(uses)
    assert log[:3] == ["busy", "ada", "bob"]
    assert sorted(log) == ["ada"] * 2 + ["bob"] + ["busy"] * 4
    await asyncio.wait_for(use("eve"), TIMEOUT)


@pytest.mark.processes
async def test_a_schema_is_compiled_in_the_process_unless_that_is_quick(checker: PayloadValidator) -> None:
    """While the process is paused, checks on the event loop go on; then the schema is accepted."""
    others = set(psutil.Process().children())
    first, second = (to_json({"pattern": f"{number}[^/]{{9}}"}).decode() for number in range(2))
    await checker.check_schema("{}", "ada")
    assert set(psutil.Process().children()) <= others
    await checker.check_schema(first, "ada")
    process = validator_process(others)
    process.suspend()
    compiling = asyncio.create_task(checker.check_schema(second, "ada"))
    assert await checker.fault(to_json({"required": ["a"]}).decode(), {"a": 1}) is None
    await checker.check_schema(first, "ada")  # it is known
    assert not compiling.done()
    process.resume()
    await compiling


@pytest.mark.processes
async def test_a_schema_that_takes_too_long_to_compile_is_refused() -> None:
    """Its registration is a 422 with the remedy."""
    checker = PayloadValidator(check_seconds=1e-9)
    with pytest.raises(InvalidSchema, match=r"compiling it takes more than 1e-09 s; use fewer"):
        await checker.check_schema(to_json({"pattern": "a"}).decode(), "ada")
    await checker.close()


def test_the_memory_of_cached_schemas_is_bounded() -> None:
    """By their size, not their number; the one used last stays, and a too large one is not kept."""
    made: list[str] = []
    cache = SchemaCache(10, lambda schema: made.append(schema) or schema)
    for schema in ("aaaa", "bbbb", "aaaa", "cccc", "aaaa", "bbbb", "d" * 11, "d" * 11):
        assert cache.get(schema) == schema
    assert made == ["aaaa", "bbbb", "cccc", "bbbb", "d" * 11, "d" * 11]


# A check of this payload takes some 20 ms.
SEARCH = {"additionalProperties": {"contains": {"const": -1}}}
LONG_LIST = {"x": [*range(50_000), -1]}


@pytest.mark.processes
async def test_many_checks_block_no_other_request(replica: Replica) -> None:
    """While the process that validates is paused, other requests are answered; then its checks succeed."""
    slow, quick = await replica.register("Slow", schema=SEARCH), await replica.register("Quick")
    replica.runtime.payload_validator = PayloadValidator(check_seconds=TIMEOUT)
    others = set(psutil.Process().children())
    await replica.submit(slow, LONG_LIST)
    process = validator_process(others)
    process.suspend()
    submits = [asyncio.create_task(replica.submit(slow, LONG_LIST)) for _ in range(30)]
    for _ in range(20):
        await replica.submit(quick)
    assert not any(submit.done() for submit in submits)
    process.resume()
    positions = sorted([(await submit).queue_position or 0 for submit in submits])
    assert positions == list(range(2, 32))
    await replica.runtime.finish()


@pytest.mark.processes
async def test_checks_of_bounded_effort_do_not_wait_for_endless_ones(replica: Replica) -> None:
    """They have a process of their own."""
    replica.runtime.payload_validator = PayloadValidator(check_seconds=20)
    endless = await replica.register("Endless", schema=bomb(60))
    search = await replica.register("Search", schema=SEARCH)
    waiting = asyncio.create_task(replica.submit(endless))
    for _ in range(3):
        assert (await replica.submit(search, LONG_LIST)).payload == LONG_LIST
    assert not waiting.done()
    waiting.cancel()
    await replica.runtime.finish()
    assert waiting.done()


async def test_quick_checks_share_a_budget_per_cycle_of_the_event_loop() -> None:
    """What exceeds the budget waits for the next cycle, in order; an error goes to its own caller."""
    budget, log = LoopBudget(0.0), []

    def work(number: int) -> int:
        log.append(number)
        if number == 2:
            raise ValueError(number)
        return number

    running = [asyncio.create_task(budget.run(partial(work, number))) for number in range(4)]
    running[1].cancel()
    while not all(task.done() for task in running):
        log.append("cycle")
        await asyncio.sleep(0)
    assert [entry for entry in log if entry != "cycle"] == [0, 2, 3]
    assert all("cycle" in log[log.index(first) : log.index(then)] for first, then in ((0, 2), (2, 3)))
    results = await asyncio.gather(*running, return_exceptions=True)
    assert [type(result) for result in results] == [int, asyncio.CancelledError, ValueError, int]
    assert await budget.run(lambda: 7) == 7


class Panic(BaseException):
    """What a library written in Rust raises; no subclass of `Exception`."""


async def test_work_that_panics_ends_its_own_caller_only() -> None:
    """Work that waited for a later cycle raises in its caller, and the work behind it is done."""
    budget = LoopBudget(0.0)

    def panic() -> int:
        raise Panic

    running = [asyncio.create_task(budget.run(work)) for work in (lambda: 1, panic, lambda: 2)]
    async with asyncio.timeout(10):
        results = await asyncio.gather(*running, return_exceptions=True)
    assert [type(result) for result in results] == [int, Panic, int]


@pytest.mark.processes
async def test_the_wait_for_a_validation_is_bounded() -> None:
    """A check that waits too long for its process is a 503; one that is cancelled leaves the line."""
    process = ValidatorProcess(check_seconds=60, listing_seconds=1, max_waiting=2)
    endless, tree = to_json(bomb(60)).decode(), to_json(TREE).decode()
    holding = asyncio.create_task(process.errors(endless, {}))
    await asyncio.sleep(0)
    cancelled = asyncio.create_task(process.errors(tree, {}, "ada"))
    await asyncio.sleep(0)
    with pytest.raises(ServiceUnavailable, match="2 payloads and schemas wait"):
        await process.errors(tree, {})
    cancelled.cancel()
    await asyncio.wait([cancelled])
    async with asyncio.timeout(30):
        with pytest.raises(ServiceUnavailable, match=r"did not begin within 0\.1 s") as refused:
            await process.errors(tree, {}, "ada", wait_seconds=0.1)
    assert refused.value.headers == {"Retry-After": "5"}
    holding.cancel()
    await asyncio.wait([holding])
    assert await process.errors(tree, {"name": "a"}) == []
    await process.stop()


async def test_a_schema_that_changed_meanwhile_counts(pair: list[Replica]) -> None:
    """A server that validated against the schema of an earlier registration validates again."""
    first, second = pair
    for needed, bad in (("a", {}), ("b", {"a": 1}), ("c", {"b": 1})):
        job = await second.register("Cut", schema={"required": [needed]})
        for _ in range(2):
            with pytest.raises(InvalidPayload, match=needed):
                await first.submit(job, bad)
            task = await first.submit(job, {needed: 1})
            assert task.payload == {needed: 1}
            await second.report(task.id, "cancelled", by=SUBMITTER)
        await second.leave(job.worker_id)
        with pytest.raises(JobNotFound):
            await first.submit(job, bad)


def test_a_misspelt_parameter_is_named_beside_the_missing_one() -> None:
    """The detail lists up to three errors, and counts the others."""
    found = [{"pointer": "", "message": f"error {number}"} for number in range(5)]
    with pytest.raises(InvalidPayload, match=r"error 0; payload: error 1; payload: error 2 \(and 2 more\)$"):
        rules_payloads.raise_if_invalid(found)
    with pytest.raises(InvalidPayload, match=r"^payload: error 0; payload: error 1$"):
        rules_payloads.raise_if_invalid(found[:2])
