"""Capture the statements of the code under test, and get their plans with EXPLAIN."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from zndraw_joblib.server.db.host_sessions import from_connection

# A plan may sort this many rows, such as the jobs of one worker; a queue or a history has far more.
FEW = 3_000
_UNKNOWN = 10**9


@dataclass
class Plan:
    """The plan of one statement.

    `scans` has each table with the index that reads it, None for a full scan; `sorted_rows` are sorted.
    """

    statement: str
    text: str
    scans: list[tuple[str, str | None]] = field(default_factory=list)
    sorted_rows: int = 0
    materialises: bool = False
    is_generic: bool = False

    def by(self, table: str) -> set[str | None]:
        """Return the indexes by which a table is read."""
        return {index for name, index in self.scans if name == table}


class Explainer:
    """Captures the statements of an engine's connections."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._captured: list[tuple[str, Any]] = []
        self._is_recording = False

    @property
    def is_postgresql(self) -> bool:
        """Whether the statements run on PostgreSQL."""
        return self._engine.dialect.name == "postgresql"

    def __enter__(self) -> Self:
        event.listen(self._engine.sync_engine, "before_cursor_execute", self._record_statement)
        return self

    def __exit__(self, *_: object) -> None:
        event.remove(self._engine.sync_engine, "before_cursor_execute", self._record_statement)

    def _record_statement(
        self, _: Any, __: Any, statement: str, parameters: Any, ___: Any, many: bool
    ) -> None:
        if self._is_recording and re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b", statement):
            self._captured.append((statement.strip(), parameters[0] if many else parameters))

    @contextmanager
    def _recording(self) -> Iterator[None]:
        self._is_recording = True
        try:
            yield
        finally:
            self._is_recording = False

    async def plans(self, work: Any) -> list[Plan]:
        """Run `work` in a transaction that is rolled back; return the plans of all its statements.

        On PostgreSQL each is explained twice: for its values, and for any values, as a prepared statement
        that is used often is.
        """
        self._captured.clear()
        async with self._engine.connect() as connection:
            with self._recording():
                await work(from_connection(connection, None))
            await connection.rollback()
            captured = list(self._captured)
            assert captured
            explain = _sqlite_plan if connection.dialect.name == "sqlite" else _postgresql_plan
            plans = [plan for item in captured for plan in await explain(connection, *item)]
            await connection.rollback()
        return plans


async def _sqlite_plan(connection: AsyncConnection, statement: str, parameters: Any) -> list[Plan]:
    rows = (await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)).all()
    lines = [row[3] for row in rows]
    plan = Plan(statement, "\n".join(lines))
    for line in lines:
        if match := re.match(r"(SCAN|SEARCH) (\w+)(?: AS \w+)?(?: USING (.*))?", line):
            access, table, using = match.groups()
            index = re.search(r"INDEX (\w+)", using or "")
            is_key = "rowid=" in (using or "") or (using or "").startswith("PRIMARY KEY")
            by = index[1] if index else "PRIMARY KEY" if is_key else None
            plan.scans.append((table, None if access == "SCAN" and not using else by))
            if access == "SCAN" and table == "joblib_task" and not _is_partial(using):
                plan.scans.append((table, None))
        # The reports of a request are parameters, which are few.
        plan.materialises |= line.startswith("MATERIALIZE") and line != "MATERIALIZE reports"
    for _, parent, _, line in rows:
        if "USE TEMP B-TREE FOR" in line and "ORDER BY" in line:
            read = [row[3] for row in rows if row[1] == parent and row[3].startswith(("SCAN", "SEARCH"))]
            is_of_worker = all(line.startswith("SEARCH joblib_worker_job ") for line in read)
            plan.sorted_rows = max(plan.sorted_rows, FEW if is_of_worker else _UNKNOWN)
    return [plan]


def _is_partial(using: str | None) -> bool:
    return bool(re.search(r"ix_joblib_task_(pending|held|on_end|front)", using or ""))


async def _postgresql_plan(connection: AsyncConnection, statement: str, parameters: Any) -> list[Plan]:
    found = []
    for mode in ("force_custom_plan", "force_generic_plan"):
        await connection.exec_driver_sql(f"SET LOCAL plan_cache_mode = {mode}")
        rows = await connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters)
        output = rows.scalar_one()
        output = json.loads(output) if isinstance(output, str) else output
        plan = Plan(statement, mode, is_generic=mode == "force_generic_plan")
        _collect(output[0]["Plan"], plan)
        found.append(plan)
    return found


def _collect(node: dict[str, Any], plan: Plan, depth: int = 1) -> None:
    kind = node["Node Type"]
    what = [str(node[key]) for key in ("Index Name", "Relation Name", "Sort Key", "Filter") if key in node]
    plan.text += f"\n{'  ' * depth}{kind} {', '.join(what)} ({node['Plan Rows']} rows)"
    if kind == "Seq Scan":
        plan.scans.append((node["Relation Name"], None))
    elif kind in {"Index Scan", "Index Only Scan"}:
        # A scan along the primary key reads the history too.
        walks = node["Index Name"] == "pk_joblib_task" and "seq = " not in node.get("Index Cond", "")
        plan.scans.append((node["Relation Name"], None if walks else node["Index Name"]))
    elif kind == "Bitmap Heap Scan":
        plan.scans += [(node["Relation Name"], index) for index in _bitmap_indexes(node)]
    elif kind in {"Sort", "Incremental Sort"}:
        [below] = [each for each in node["Plans"] if each["Parent Relationship"] == "Outer"]
        plan.sorted_rows = max(plan.sorted_rows, int(below["Plan Rows"]))
    for below in node.get("Plans", []):
        _collect(below, plan, depth + 1)


def _bitmap_indexes(node: dict[str, Any]) -> list[str]:
    own = [node["Index Name"]] if node["Node Type"] == "Bitmap Index Scan" else []
    return own + [name for below in node.get("Plans", []) for name in _bitmap_indexes(below)]
