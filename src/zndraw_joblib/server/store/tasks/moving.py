"""The statements that change the status of tasks: they write only the columns that change."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Select, Update, bindparam, func, literal_column, null, select, update

from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.store import jobs as job_store
from zndraw_joblib.server.store.bulk import among, arrays, json_rows, padded
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.room_events import is_watched
from zndraw_joblib.server.store.tables import Task
from zndraw_joblib.server.store.tasks import counts
from zndraw_joblib.server.store.tasks.records import CHUNK, Move

tasks = Task.__table__

_GUARDED = ("status", "attempt")
_WRITTEN = (
    *("status", "worker_id", "worker_owner_id", "attempt", "claimed_at", "started_at", "completed_at"),
    *("error", "error_code", "result", "run_at", "expires_at", "deadline", "failures", "crashes", "claim_id"),
    *("queued_at", "unstarted"),
)
_OLD = {f"old_{name}": tasks.c[name] for name in _GUARDED}
_NEW = {f"new_{name}": tasks.c[name] for name in _WRITTEN}
_GIVEN = {"seq": tasks.c.seq, **_OLD, **_NEW}
# Made before the statement runs: then SQLAlchemy has memoized its columns without those of RETURNING.
_COUNTED = job_store.ADD_TO_COUNTS.returning(job_store.jobs.c.paused).cte("counted")


def statement(tx: Transaction, moves: Sequence[Move]) -> tuple[Update | None, dict[str, Any]]:
    """Return the statement that writes moves, with its parameters; None if no column changes.

    It has the guards on status and attempt, and returns the `seq` of each task that it has written, on
    PostgreSQL also whether its room is watched. A value that is the same for all tasks is one parameter.
    """
    before, after = [vars(old) for old, _ in moves], [vars(new) for _, new in moves]
    columns = {f"old_{name}": [old[name] for old in before] for name in _GUARDED}
    pairs = list(zip(before, after, strict=True))
    is_any = False
    for name in _WRITTEN:
        if any(old[name] is not new[name] for old, new in pairs):
            columns[f"new_{name}"] = [new[name] for new in after]
            is_any = True
    if not is_any:
        return None, {}
    same = {
        name: values[0] for name, values in columns.items() if all(value is values[0] for value in values)
    }
    if not tx.is_sqlite and len(same) < len(columns):
        # As parameters the guards seem to match few tasks, so PostgreSQL may look for these first, in the
        # whole table. In the list they cannot.
        same = {name: value for name, value in same.items() if name not in _OLD}
    each = {"seq": [old["seq"] for old in before]}
    each |= {name: values for name, values in columns.items() if name not in same}
    # SQLite takes a limited number of parameters. A list in one of them costs more for few tasks.
    is_listed = len(each) == 1 and not (tx.is_sqlite and len(moves) > CHUNK)
    made = _updating(tuple(same), tuple(each), is_listed=is_listed, is_sqlite=tx.is_sqlite)
    if is_listed:
        return made, {**same, "seqs": padded(each["seq"]) if tx.is_sqlite else each["seq"]}
    if tx.is_sqlite:
        return made, {**same, "rows": list(each.values())}
    return made, same | {f"all_{name}": values for name, values in each.items()}


@lru_cache(maxsize=512)
def _updating(same: tuple[str, ...], each: tuple[str, ...], *, is_listed: bool, is_sqlite: bool) -> Update:
    given: dict[str, ColumnElement[Any]] = {name: bindparam(name, type_=_GIVEN[name].type) for name in same}
    if is_listed:
        chosen: ColumnElement[bool] = among(tasks.c.seq, bindparam("seqs"))
    else:
        kinds = {name: _GIVEN[name].type for name in each}
        given |= json_rows(kinds) if is_sqlite else dict(arrays(kinds).c)
        chosen = tasks.c.seq == given["seq"]
    guards = [column == given[name] for name, column in _OLD.items()]
    values = {column.name: given[name] for name, column in _NEW.items() if name in given}
    made = update(tasks).where(chosen, *guards).values(values).returning(tasks.c.seq)
    return made if is_sqlite else made.returning(is_watched(tasks.c.room_id).label("is_watched"))


def failing(held: ColumnElement[bool]) -> Update:
    """Return the statement that fails held tasks after a crash: `held` is their guard.

    Its parameters are the time `now`, the `error` and its `code`.
    """
    values = {
        "status": literal_column(f"'{TaskStatus.FAILED}'"),
        "completed_at": bindparam("now", type_=tasks.c.completed_at.type),
        "error": bindparam("error"),
        "error_code": bindparam("code"),
        "crashes": tasks.c.crashes + literal_column("1"),
        "deadline": null(),
        "run_at": null(),
    }
    return update(tasks).where(held).values(values)


@lru_cache(maxsize=512)
def counting(written: Update, *, is_of_one_job: bool) -> Select[Any]:
    """Return PostgreSQL's statement that also keeps the counts: one round trip less.

    It returns how many tasks it has written, whether one of their rooms is watched, and whether their job is
    paused: None unless all are of one job whose counts change.
    """
    rows = written.cte("written")
    count = select(func.count()).select_from(rows).scalar_subquery().label("written")
    watched = select(func.bool_or(rows.c.is_watched)).scalar_subquery().label("is_watched")
    if not is_of_one_job:
        return select(count, watched, null().label("paused")).add_cte(rows, *counts.keep_given())
    return select(count, watched, _COUNTED.c.paused).add_cte(rows, *counts.keep_given(_COUNTED))
