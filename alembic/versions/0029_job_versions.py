"""Let a job have several versions, each with a queue of its own."""

import re
from collections.abc import Callable

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

_JOB = "joblib_job"
_NAME, _PARTS = "uq_joblib_job_full_name", "uq_joblib_job_room_id_category_name"
_CURRENT = sa.text("NOT superseded")


def upgrade() -> None:
    op.add_column(_JOB, sa.Column("job_version", sa.Integer(), server_default=sa.text("1"), nullable=False))
    op.add_column(_JOB, sa.Column("first_id", sa.Uuid(), nullable=True))
    op.add_column(_JOB, sa.Column("superseded", sa.Boolean(), server_default=sa.false(), nullable=False))
    if op.get_bind().dialect.name == "sqlite":
        _rebuild(_without_constraints)
    else:
        op.drop_constraint(_NAME, _JOB)
        op.drop_constraint(_PARTS, _JOB)
    op.create_index(_NAME, _JOB, ["full_name"], unique=True, sqlite_where=_CURRENT, postgresql_where=_CURRENT)
    op.create_index("ix_joblib_job_full_name", _JOB, ["full_name"])
    op.create_index("ix_joblib_job_room_id_category_name", _JOB, ["room_id", "category", "name"])


def downgrade() -> None:
    """Remove versions. Raises an integrity error while a job has several."""
    for name in (_NAME, "ix_joblib_job_full_name", "ix_joblib_job_room_id_category_name"):
        op.drop_index(name, _JOB)
    if op.get_bind().dialect.name == "sqlite":
        _rebuild(_with_constraints)
    else:
        op.create_unique_constraint(_PARTS, _JOB, ["room_id", "category", "name"])
        op.create_unique_constraint(_NAME, _JOB, ["full_name"])
    for name in ("superseded", "first_id", "job_version"):
        op.drop_column(_JOB, name)


def _without_constraints(sql: str) -> str:
    for constraint in (f"{_NAME} UNIQUE (full_name)", f"{_PARTS} UNIQUE (room_id, category, name)"):
        sql = re.sub(rf",\s*CONSTRAINT {re.escape(constraint)}", "", sql)
    return sql


def _with_constraints(sql: str) -> str:
    end = sql.rindex(")")
    constraints = (
        f", CONSTRAINT {_NAME} UNIQUE (full_name), CONSTRAINT {_PARTS} UNIQUE (room_id, category, name)"
    )
    return sql[:end] + constraints + sql[end:]


def _rebuild(change: Callable[[str], str]) -> None:
    """Create SQLite's table again with other constraints. Rows of other tables refer to its rows meanwhile.

    A host may have begun the transaction, in which references cannot be switched off. They are checked at its
    end, when all rows are back.
    """
    connection = op.get_bind()
    if not getattr(connection.connection.driver_connection, "in_transaction", True):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    connection.exec_driver_sql("PRAGMA defer_foreign_keys=ON")
    described = connection.exec_driver_sql(
        f"SELECT type, sql FROM sqlite_master WHERE tbl_name = '{_JOB}' AND sql IS NOT NULL"  # noqa: S608
    ).all()
    [table] = [sql for kind, sql in described if kind == "table"]
    columns = ", ".join(
        name
        for _, name, *_, hidden in connection.exec_driver_sql(f"PRAGMA table_xinfo({_JOB})")
        if not hidden
    )
    connection.exec_driver_sql(f"CREATE TEMP TABLE copied_jobs AS SELECT {columns} FROM {_JOB}")  # noqa: S608
    # DROP TABLE refuses rows to which others refer, DELETE leaves that to the end of the transaction.
    connection.exec_driver_sql(f"DELETE FROM {_JOB}")  # noqa: S608
    connection.exec_driver_sql(f"DROP TABLE {_JOB}")
    connection.exec_driver_sql(change(table))
    connection.exec_driver_sql(f"INSERT INTO {_JOB} ({columns}) SELECT {columns} FROM copied_jobs")  # noqa: S608
    connection.exec_driver_sql("DROP TABLE copied_jobs")
    for kind, sql in described:
        if kind == "index":
            connection.exec_driver_sql(sql)
