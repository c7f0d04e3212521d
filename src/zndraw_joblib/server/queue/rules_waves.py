"""Handle the ends for which tasks wait: release, fail, hold or cancel those tasks.

Each transaction handles a part of bounded size. A task that fails or is cancelled here may be a
predecessor too: a transaction follows such ends, step by step, as far as its bounds allow, and leaves the
rest to the next.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from pydantic_core import from_json, to_json

from zndraw_joblib.server.db.database import Transaction
from zndraw_joblib.server.queue import (
    rules_answers,
    rules_jobs,
    rules_limits,
    rules_payloads,
    rules_transitions,
    sql_jobs,
    sql_successors,
    sql_tasks,
    sql_transitions,
)
from zndraw_joblib.server.queue.sql_successors import (
    COMPLETED,
    EdgeChange,
    OpenEdge,
    SourceResult,
    TakenWaves,
    WaitsBehind,
    WaveRow,
)
from zndraw_joblib.server.queue.sql_task_rows import Move, TaskRecord
from zndraw_joblib.wire.messages import MAX_JSON_BYTES
from zndraw_joblib.wire.problems import Conflict, PredecessorFailed, PredecessorResultInvalid
from zndraw_joblib.wire.statuses import TERMINAL, TaskStatus
from zndraw_joblib.wire.successors import (
    MAX_INLINE_BYTES,
    OnFailure,
    ResultOf,
    places,
    reference_to,
    result_nodes,
    result_of,
    value_at,
    with_values,
)

# The most that one transaction handles: tasks, tasks with results in their payloads, and ends. It begins no
# further step after these seconds.
MAX_TASKS, _MAX_FILLED, _MAX_WAVES, _MAX_SECONDS = 100, 20, 100, 0.1
# It reads at least this number of tasks of each end, also if it handles fewer.
_MIN_OF_EACH = 10
# The most bytes of results in one payload, as JSON; further ones are passed as references.
_MAX_FILLED_BYTES = MAX_JSON_BYTES // 2
_MAX_REASONS, _MAX_ERROR_BYTES = 3, 2000
_DELETED = "deleted"
_ENDED = frozenset(status.value for status in TERMINAL)


class Unchecked(NamedTuple):
    """A payload whose validation against a schema takes long; both are JSON. `digest` is that of both.

    `source` is a predecessor of its task.
    """

    task_seq: int
    job_id: UUID
    user: str
    schema: str
    payload: str
    digest: bytes
    source: int = 0


# The errors of payloads that were validated, with their pointers, by the digest.
Checked = Mapping[bytes, Sequence[Mapping[str, str]]]


class Handled(NamedTuple):
    """How many tasks a transaction handled, and whether there may be more.

    `is_blocked`: it handled nothing, because other transactions have locked the tasks, or their payloads are
    being validated. `unchecked` are payloads to validate: their tasks are not released before. `next_room`
    and `passed` are for the `Rules` of the next transaction.
    """

    number: int = 0
    may_be_more: bool = False
    is_blocked: bool = False
    unchecked: Sequence[Unchecked] = ()
    next_room: str = ""
    passed: Mapping[int, int] = MappingProxyType({})


class Rules(NamedTuple):
    """How a transaction handles ends: whether it validates payloads, what was `checked`, and its bounds.

    It handles the end with the number `only`, if that is set. No payload with results is filled of `busy`
    jobs, because others of their payloads are being validated.

    It begins with `first_room`, if more rooms have ends than it reads. `passed` has the numbers of tasks, by
    their predecessors, behind which it looks for tasks to release: those before could not be. `ready` has
    tasks whose payloads have just been validated, each with a predecessor, of which it begins with them.
    """

    validate: bool = True
    checked: Checked = MappingProxyType({})
    tasks: int = MAX_TASKS
    seconds: float = _MAX_SECONDS
    only: int | None = None
    busy: Collection[UUID] = ()
    first_room: str = ""
    passed: Mapping[int, int] = MappingProxyType({})
    ready: Mapping[int, int] = MappingProxyType({})


_RULES = Rules()


async def handle(tx: Transaction, rules: Rules = _RULES) -> Handled:
    """Handle some ends for which tasks wait. Call it until there is nothing more."""
    waves, next_room, is_full = await _take(tx, rules)
    if not waves:
        return Handled(next_room=next_room, may_be_more=is_full)
    step = _Step(tx, await tx.now(), rules, {wave.source: wave.room_id for wave in waves})
    left = await step.run(*await _ends(tx, waves))
    left |= await step.write()
    done = [wave.n for wave in waves if wave.source not in left]
    await sql_successors.finish(tx, step.released, done)
    is_blocked = not done and not step.has_changed
    if is_full or not is_blocked:
        # The ends of other predecessors are next, even if more tasks wait for this one.
        await sql_successors.move_waves_back(tx, [wave for wave in waves if wave.source in left])
    may_be_more = bool(left) or is_full or step.has_ended_linked
    passed = {source: seq if source in left else 0 for source, seq in step.passed.items()}
    return Handled(len(step.records), may_be_more, is_blocked, step.unchecked, next_room, passed)


async def _take(tx: Transaction, rules: Rules) -> TakenWaves:
    if rules.only is not None:
        return TakenWaves(await sql_successors.take_wave(tx, rules.only), "", may_be_more=False)
    return await sql_successors.take_waves(tx, _MAX_WAVES, rules.first_room)


async def _ends(tx: Transaction, waves: Sequence[WaveRow]) -> tuple[dict[int, str], set[int]]:
    """Return how predecessors have ended, without those that were retried since, and those that cancel."""
    cancelling = {wave.source for wave in waves if wave.cancels}
    statuses = await sql_successors.statuses(tx, {wave.source for wave in waves})
    # One is deleted only while no task waits for it; then a task that waited for it may be retried.
    found = {wave.source: statuses.get(wave.source, _DELETED) for wave in waves}
    ends = {
        source: status or ""
        for source, status in found.items()
        if status in _ENDED or status == _DELETED or source in cancelling
    }
    return ends, cancelling


class _Step:
    """What a transaction decides about the tasks that wait for predecessors: `records`, which are locked."""

    def __init__(self, tx: Transaction, now: datetime, rules: Rules, rooms: dict[int, str]) -> None:
        self._tx, self._now, self._rules = tx, now, rules
        # The rooms of predecessors.
        self._rooms = rooms
        self.passed: dict[int, int] = {}
        self._until = time.monotonic() + rules.seconds
        self.records: dict[int, TaskRecord] = {}
        self._ended: dict[int, TaskRecord] = {}
        self._changes: dict[tuple[int, int], EdgeChange] = {}
        # Of each task that may be released, one of its edges.
        self._edges: dict[int, OpenEdge] = {}
        # On PostgreSQL, of each locked task the predecessors of its open edges, as the database has them.
        self._open: dict[int, set[int]] = {}
        self.released: list[int] = []
        self.unchecked: list[Unchecked] = []
        self.has_changed = False

    @property
    def has_ended_linked(self) -> bool:
        """Whether its end records ends for which tasks may wait."""
        return any(task.linked for task in self._ended.values())

    async def run(self, ends: dict[int, str], cancelling: set[int]) -> set[int]:
        """Decide what the ends of predecessors cause, and what follows from that.

        Return those of them whose successors were not all handled. The ends of others are recorded.
        """
        left, ends = await self._handle(ends, cancelling)
        while ends and len(self.records) < self._rules.tasks and time.monotonic() < self._until:
            _, ends = await self._handle(ends, cancelling)
        return left

    async def _handle(self, ends: Mapping[int, str], cancelling: set[int]) -> tuple[set[int], dict[int, str]]:
        """Return the predecessors with further successors, and the successors that end and have some too."""
        if not ends:
            return set(), {}
        limit = self._rules.tasks - len(self.records)
        given = self._given({s: status == COMPLETED or s in cancelling for s, status in ends.items()}, limit)
        of_source = await sql_successors.open_edges(self._tx, given)
        # Those before are looked at again.
        left = {one.source for one in given if one.after or len(of_source[one.source]) == one.limit}
        edges, unread = self._choose(of_source, {one.source: one.is_all for one in given}, limit)
        self._pass(given, of_source, edges)
        left |= unread
        new = sorted({edge.task_seq for edge in edges} - self.records.keys())
        # Without waiting: others lock tasks in another order.
        locked = await sql_tasks.lock_free(self._tx, new) if new else []
        self.records |= {task.seq: task for task in locked}
        edges, ends = await self._read_again(edges, ends, cancelling)
        following: dict[int, str] = {}
        for edge in edges:
            task = self.records.get(edge.task_seq)
            if task is None or (edge.fills and self._is_busy(task)):
                left.add(edge.source)
                continue
            after = self._decide(edge, task, ends[edge.source], is_cancel=edge.source in cancelling)
            if after is not None and after.linked:
                following[after.seq] = after.status.value
                self._rooms[after.seq] = after.room_id
                if edge.source in cancelling:
                    cancelling.add(after.seq)
                    self._tx.cancelling.add(after.seq)
        return left, following

    def _is_busy(self, task: TaskRecord) -> bool:
        return task.job_id in self._rules.busy and task.seq not in self._rules.ready

    def _given(self, sources: Mapping[int, bool], limit: int) -> list[WaitsBehind]:
        """Return how many tasks are read that wait for each predecessor: as many for each room."""
        of_room = Counter(self._rooms[source] for source in sources)
        first = {source: seq - 1 for seq, source in sorted(self._rules.ready.items(), reverse=True)}
        return [
            WaitsBehind(
                source,
                is_all,
                max(_MIN_OF_EACH, -(-limit // (len(of_room) * of_room[self._rooms[source]]))) + 1,
                first.get(source, self._rules.passed.get(source, 0)),
            )
            for source, is_all in sources.items()
        ]

    def _pass(
        self,
        given: Sequence[WaitsBehind],
        of_source: Mapping[int, Sequence[OpenEdge]],
        chosen: Sequence[OpenEdge],
    ) -> None:
        """Let the next transaction look behind the tasks that were read, if there are more; else at all."""
        last = {edge.source: edge.task_seq for edge in chosen}
        for source, _, limit, after in given:
            is_more = len(of_source[source]) == limit
            self.passed[source] = last.get(source, after) if is_more else 0

    async def _read_again(
        self, edges: list[OpenEdge], ends: Mapping[int, str], cancelling: set[int]
    ) -> tuple[list[OpenEdge], Mapping[int, str]]:
        """Return the edges that are open now that their tasks are locked, and how predecessors have ended.

        Another server may have handled a later end of a predecessor since they were read.
        """
        if self._tx.is_sqlite or not edges:
            return edges, ends
        # What ends in this transaction is not written yet.
        sources = {edge.source for edge in edges} - self._ended.keys()
        groups = {source for source in sources if source < 0}
        statuses = await sql_successors.statuses(self._tx, groups)
        seqs = {edge.task_seq for edge in edges if edge.task_seq in self.records}
        if seqs:
            current, of_tasks = await sql_successors.still_open(self._tx, seqs, sources - groups)
            self._open |= current
            statuses |= of_tasks
        again = {**ends, **{source: status or "" for source, status in statuses.items()}}
        kept = [
            edge
            for edge in edges
            if edge.task_seq not in self.records or edge.source in self._open[edge.task_seq]
            if again[edge.source] in _ENDED or again[edge.source] == _DELETED or edge.source in cancelling
        ]
        return kept, again

    def _choose(
        self, of_source: Mapping[int, Sequence[OpenEdge]], sources: Mapping[int, bool], limit: int
    ) -> tuple[list[OpenEdge], set[int]]:
        """Return the edges that are handled now, of each room and predecessor in turn, and the others' ones.

        Those that put results into payloads are few, and the others do not wait for them.
        """
        filled = {seq for seq, edge in self._edges.items() if edge.fills}
        edges: list[OpenEdge] = []
        left: set[int] = set()
        of_room: dict[str, list[Sequence[OpenEdge]]] = {}
        for source, of_one in of_source.items():
            of_room.setdefault(self._rooms[source], []).append(of_one)
        for edge in _in_turn([_in_turn(of_one_room) for of_one_room in of_room.values()]):
            may_run = sources[edge.source] or edge.on_failure == OnFailure.RUN
            fills = edge.fills and may_run and edge.task_seq not in filled
            if len(edges) == limit or (fills and len(filled) == _MAX_FILLED):
                left.add(edge.source)
                continue
            edges.append(edge)
            if fills:
                filled.add(edge.task_seq)
        return edges, left

    def _decide(self, edge: OpenEdge, task: TaskRecord, status: str, *, is_cancel: bool) -> TaskRecord | None:
        """Decide what the end of a predecessor does to a task. Return it if it ends."""
        is_waiting = task.is_waiting and task.seq not in self._ended
        is_success = status == COMPLETED or edge.on_failure == OnFailure.RUN
        holds = is_waiting and not is_success and not is_cancel and edge.on_failure == OnFailure.HOLD
        self._changes[edge.task_seq, edge.source] = EdgeChange(edge.task_seq, edge.source, status, holds)
        if not is_waiting or holds:
            return None
        if is_success and not is_cancel:
            self._edges[task.seq] = edge
            return None
        if is_cancel:
            after = rules_transitions.ended(task, TaskStatus.CANCELLED, self._now, None, None)
        else:
            error, code = _error(edge, status), PredecessorFailed.problem_id()
            after = rules_transitions.ended(task, TaskStatus.FAILED, self._now, error, code)
        self._ended[task.seq] = after
        return after

    async def write(self) -> set[int]:
        """Write what was decided. Return predecessors of tasks whose payloads are to be validated first."""
        await sql_successors.change_edges(self._tx, list(self._changes.values()))
        candidates = self._edges.keys() - self._ended.keys()
        waiting = await self._waiting(candidates) if candidates else set()
        ready = [self.records[seq] for seq in sorted(candidates - waiting)]
        fills = _Fills(self._tx, self._rules, self._now)
        filled = await fills.fill([task for task in ready if self._edges[task.seq].fills])
        moves: list[Move] = [(self.records[seq], after) for seq, after in self._ended.items()]
        for task in ready:
            after = filled.get(task.seq, task)
            if after is None:
                continue
            moves.append((task, _released(after, self._edges[task.seq].run_at, self._now)))
        self.released = await _move(self._tx, moves)
        kept = [self._edges[seq] for seq, after in filled.items() if after is None]
        self.has_changed = len(self._changes) > len(kept)
        await sql_successors.change_edges(
            self._tx, [EdgeChange(edge.task_seq, edge.source, None, is_open=True) for edge in kept]
        )
        self.unchecked = [item._replace(source=self._edges[item.task_seq].source) for item in fills.unchecked]
        return {edge.source for edge in kept}

    async def _waiting(self, seqs: Collection[int]) -> set[int]:
        """Return which of these tasks still wait for a predecessor."""
        if self._tx.is_sqlite:
            return await sql_successors.waiting(self._tx, seqs)
        # Their edges change only in transactions that have locked them.
        closed = {key for key, change in self._changes.items() if not change.is_open}
        return {seq for seq in seqs if any((seq, source) not in closed for source in self._open[seq])}


def _in_turn(lists: Sequence[Sequence[OpenEdge]]) -> list[OpenEdge]:
    """Return the first of each list, then the second of each, and so on."""
    return [edge for round_ in zip_longest(*lists) for edge in round_ if edge]


def _error(edge: OpenEdge, status: str) -> str:
    if edge.source < 0:
        return f"Group {edge.predecessor}, which the task waited for, has tasks that did not complete"
    verb = "has failed" if status == TaskStatus.FAILED.value else f"was {status}"
    return f"Task {edge.predecessor}, which the task waited for, {verb}"


def _released(task: TaskRecord, run_at: datetime | None, now: datetime) -> TaskRecord:
    """Return a task that waits no longer in its queue, or scheduled for a later time; or as it has ended."""
    if task.status is not TaskStatus.PENDING:
        return task
    return task.changed(run_at=run_at if run_at is not None and run_at > now else None)


async def _move(tx: Transaction, moves: Sequence[Move]) -> list[int]:
    """Write tasks that wait no longer. Return those that were released."""
    if not moves:
        return []
    await sql_jobs.lock_with_versions(tx, {before.job_id for before, _ in moves})
    await sql_transitions.move(tx, moves)
    released = [after for _, after in moves if after.status is TaskStatus.PENDING]
    for task in released:
        if task.is_queued:
            rules_answers.publish_available(tx, task)
    ended = [after for _, after in moves if after.status is not TaskStatus.PENDING]
    for task in ended:
        rules_answers.publish_status(tx, task)
    await rules_jobs.record_unserved(tx, sorted({task.job_id for task in ended}))
    return [task.seq for task in released]


async def release_by_hand(tx: Transaction, task: TaskRecord, *, validate: bool) -> TaskRecord:
    """Return a task that waits, and is locked, in its queue. It validates the payload if `validate`.

    Raises `Conflict` if its payload needs the result of a predecessor that has not completed, or one that
    does not fit.
    """
    now, after = await tx.now(), rules_transitions.due(task)
    successor = (await sql_successors.unreleased(tx, [task.seq])).get(task.seq)
    if successor is not None and successor.fills:
        rules = Rules(validate=validate)
        filled = (await _Fills(tx, rules, now).fill([task], by_hand=True))[task.seq]
        if filled is None:
            raise Conflict(
                "The check of its payload against the schema of its job takes too long to run it by hand; "
                "wait until its predecessors have ended"
            )
        if filled.status is not TaskStatus.PENDING:
            raise Conflict(f"{filled.error}; cancel it, and submit a task with another payload")
        after = _released(filled, None, now)
    await sql_successors.record_released(tx, [task.seq])
    return after


class _Fills:
    """Puts the results of predecessors into the payloads of tasks that are released, and validates these."""

    def __init__(self, tx: Transaction, rules: Rules, now: datetime) -> None:
        self._tx, self._rules, self._now = tx, rules, now
        self.unchecked: list[Unchecked] = []

    async def fill(
        self, tasks: Sequence[TaskRecord], *, by_hand: bool = False
    ) -> dict[int, TaskRecord | None]:
        """Write the payloads of these tasks. Return the tasks by `seq`.

        One without a fitting result has failed, and None stands for one whose payload has to be validated
        before. `by_hand` raises `Conflict` for a result that does not exist yet.
        """
        if not tasks:
            return {}
        predecessors = await sql_successors.predecessors(self._tx, [task.seq for task in tasks])
        sources = {source for of_task in predecessors.values() for source in of_task.values()}
        results = await sql_successors.results(self._tx, sources, MAX_INLINE_BYTES)
        bodies = await sql_tasks.bodies(self._tx, [task.id for task in tasks])
        schemas = await sql_successors.schemas(self._tx, {task.job_id for task in tasks})
        filled: dict[int, TaskRecord | None] = {}
        payloads: dict[int, str] = {}
        for task in tasks:
            own = {id_: results.get(id_) for id_ in predecessors.get(task.seq, {})}
            if by_hand:
                _raise_if_open(own, bodies[task.id][0])
            try:
                after, payload = self._fill_one(task, bodies[task.id][0], own, schemas[task.job_id])
            except _Unfit as error:
                after, payload = self._failed(task, str(error)), None
            except Exception as error:
                # A value that cannot be handled ends its own task. It must not stop the others.
                after, payload = (
                    self._failed(task, f"Its results cannot be put into the payload: {error}"),
                    None,
                )
            filled[task.seq] = after
            if payload is not None:
                payloads[task.seq] = payload
        await sql_successors.write_payloads(self._tx, payloads)
        return filled

    def _fill_one(
        self,
        task: TaskRecord,
        payload: dict[str, Any],
        results: Mapping[UUID, SourceResult | None],
        schema: str,
    ) -> tuple[TaskRecord | None, str | None]:
        """Return a task with its payload as JSON; None for one that has to be validated before."""
        result = _Filled(results, MAX_JSON_BYTES - len(to_json(payload))).of(payload)
        content = to_json(result.payload).decode()
        # What is nested too deeply can be written, but not read.
        from_json(content)
        if not self._check(task, schema, result):
            return None, None
        return _keyed(task, result), content

    def _failed(self, task: TaskRecord, error: str) -> TaskRecord:
        code, text = (
            PredecessorResultInvalid.problem_id(),
            rules_transitions.truncate_error(error, _MAX_ERROR_BYTES),
        )
        return rules_transitions.ended(task, TaskStatus.FAILED, self._now, text, code)

    def _check(self, task: TaskRecord, schema: str, filled: "_Payload") -> bool:
        """Return whether a payload was validated. Raises `_Unfit` for one that the schema refuses."""
        if not self._rules.validate or rules_payloads.is_surely_valid(schema, filled.payload):
            return True
        errors: Sequence[Mapping[str, str]] | None
        errors = rules_payloads.check_quickly(schema, filled.payload).errors
        if errors is None:
            payload = to_json(filled.payload)
            digest = hashlib.sha256(b"%d:%s%s" % (len(payload), payload, schema.encode())).digest()
            if digest not in self._rules.checked:
                self.unchecked.append(
                    Unchecked(task.seq, task.job_id, task.created_by, schema, payload.decode(), digest)
                )
                return False
            errors = self._rules.checked[digest]
        raise_if_unfit(errors, filled.references)
        return True


def _keyed(task: TaskRecord, filled: "_Payload") -> TaskRecord:
    """Return a task with the keys of the limits of its job in its new payload."""
    if not task.policy.limits:
        return task
    return task.changed(limit_key=rules_limits.key_of(task.policy.limits, filled.payload, task.created_by))


class _Unfit(Exception):
    """A result does not fit into the payload."""


class _Payload(NamedTuple):
    """A payload with results, and the places of the references among them."""

    payload: dict[str, Any]
    references: Sequence[str]


def raise_if_unfit(errors: Sequence[Mapping[str, str]], references: Sequence[str]) -> None:
    """Raise `_Unfit` with errors of a payload, except those of references, which workers replace."""
    others = rules_payloads.errors_outside(errors, references)
    if others:
        texts = [f"payload{error['pointer']}: {error['message']}" for error in others[:_MAX_REASONS]]
        raise _Unfit(
            f"With the results of its predecessors the payload does not match the schema: {'; '.join(texts)}"
        )


def _raise_if_open(results: Mapping[UUID, SourceResult | None], payload: dict[str, Any]) -> None:
    for node in result_nodes(payload):
        value = _result_of(node)
        source = None if value is None or not isinstance(value.task, UUID) else results.get(value.task)
        if source is not None and source.status != COMPLETED:
            raise Conflict(
                f"Its payload needs the result of task {source.id}, which is {source.status}; retry that "
                "task, and this one runs when it has completed, or submit another task"
            )


def _result_of(node: Any) -> ResultOf | None:
    try:
        return result_of(node)
    except ValueError:
        return None


class _Filled:
    """Fills one payload with results, of which some are references."""

    def __init__(self, results: Mapping[UUID, SourceResult | None], free_bytes: int) -> None:
        self._results, self._free = results, min(free_bytes, _MAX_FILLED_BYTES)
        self._values: dict[UUID, Any] = {}

    def of(self, payload: dict[str, Any]) -> _Payload:
        """Return a payload with results. Raises `_Unfit` for a part of a result that does not exist."""
        place_of = {id(node): place for place, node in places(payload)}
        references: list[str] = []

        def value_of(node: Any) -> Any:
            place = place_of.get(id(node))
            result = None if place is None else _result_of(node)
            if place is None or result is None or not isinstance(result.task, UUID):
                return node
            value, is_reference = self._value(place, result, result.task)
            if is_reference:
                references.append(place)
            return value

        return _Payload(with_values(payload, value_of), references)

    def _value(self, place: str, result: ResultOf, task_id: UUID) -> tuple[Any, bool]:
        source = self._results.get(task_id)
        if source is None or source.status != COMPLETED:
            state = "was deleted" if source is None else f"is {source.status}"
            raise _Unfit(f"payload{place}: task {task_id} {state}, so it has no result")
        if source.is_long or source.is_stored:
            return reference_to(result), True
        if task_id not in self._values:
            self._values[task_id] = None if source.result_json is None else from_json(source.result_json)
        try:
            value = value_at(self._values[task_id], result.pointer)
        except (LookupError, ValueError):
            raise _Unfit(
                f"payload{place}: the result of task {task_id} has nothing at {result.pointer!r}"
            ) from None
        self._free -= len(to_json(value))
        return (reference_to(result), True) if self._free < 0 else (value, False)
