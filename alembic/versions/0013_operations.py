"""Add what operators see: statistics, servers, sweeper cycles, the audit trail, and details of workers."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_NEW = {
    "joblib_worker": {
        "name": sa.Text(),
        "host": sa.Text(),
        "pid": sa.Integer(),
        "version": sa.Text(),
        "slots": sa.Integer(),
    },
    "joblib_task": {"queued_at": sa.DateTime(timezone=True), "traceparent": sa.String(length=64)},
    "joblib_attempt": {"queued_at": sa.DateTime(timezone=True)},
}
_ENDED = sa.text("completed_at IS NOT NULL")
_UNSUCCESSFUL = sa.text("status IN ('cancelled', 'failed')")
_COUNTS = ("submitted", "completed", "failed", "cancelled", "retried", "lost")
_FLOORS = ("task_floor", "attempt_floor", "next_task_floor", "next_attempt_floor")


def _count(name: str) -> sa.Column:
    return sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False)


def _moment(name: str, *, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _text(name: str) -> sa.Column:
    return sa.Column(name, sa.Text(), nullable=False)


def _serial(table: str) -> tuple[sa.Column, sa.PrimaryKeyConstraint]:
    kind = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    column = sa.Column("n", kind, autoincrement=True, nullable=False)
    return column, sa.PrimaryKeyConstraint("n", name=op.f(f"pk_{table}"))


def upgrade() -> None:
    for table, columns in _NEW.items():
        for name, kind in columns.items():
            op.add_column(table, sa.Column(name, kind, nullable=True))
    op.create_index("ix_joblib_worker_created_at", "joblib_worker", ["created_at"])
    _create_task_indexes()
    _create_statistics()
    _create_servers()
    _create_audit()


def _create_task_indexes() -> None:
    for name, columns, where in (
        ("ix_joblib_task_ended", ["completed_at", "seq"], _ENDED),
        ("ix_joblib_task_unsuccessful", ["status", "seq"], _UNSUCCESSFUL),
    ):
        op.create_index(name, "joblib_task", columns, sqlite_where=where, postgresql_where=where)


def _create_statistics() -> None:
    op.create_table(
        "joblib_statistic",
        sa.Column("resolution", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        _moment("start"),
        *[_count(name) for name in _COUNTS],
        *[
            sa.Column(name, sa.Float(), server_default=sa.text("0"), nullable=False)
            for name in ("waiting_seconds", "running_seconds")
        ],
        *[_text(name) for name in ("waiting", "running", "causes")],
        sa.PrimaryKeyConstraint("resolution", "job_id", "start", name=op.f("pk_joblib_statistic")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_joblib_statistic_start", "joblib_statistic", ["resolution", "start"])
    op.create_table(
        "joblib_statistic_position",
        sa.Column("key", sa.Integer(), autoincrement=False, nullable=False),
        _moment("until"),
        *[_count(name) for name in _FLOORS[:2]],
        _moment("next_at"),
        *[_count(name) for name in _FLOORS[2:]],
        sa.PrimaryKeyConstraint("key", name=op.f("pk_joblib_statistic_position")),
    )


def _create_servers() -> None:
    op.create_table(
        "joblib_server",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        *[_moment(name) for name in ("started_at", "seen_at")],
        sa.Column("sweeper_mode", sa.String(length=16), nullable=True),
        sa.Column("sweep_interval_seconds", sa.Float(), nullable=False),
        sa.Column("grace_remaining_seconds", sa.Float(), nullable=False),
        _moment("last_good_at", nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_joblib_server")),
    )
    n, key = _serial("joblib_sweep_cycle")
    op.create_table(
        "joblib_sweep_cycle",
        n,
        sa.Column("server_id", sa.Uuid(), nullable=False),
        _moment("at"),
        sa.Column("mode", sa.String(length=16), nullable=True),
        *[
            sa.Column(name, sa.Integer(), nullable=False)
            for name in ("scanned", "stale", "expired", "released", "failed", "pruned", "errors")
        ],
        sa.Column("elapsed", sa.Float(), nullable=False),
        sa.Column("held_back", sa.Boolean(), nullable=False),
        key,
    )
    op.create_index("ix_joblib_sweep_cycle_at", "joblib_sweep_cycle", ["at"])


def _create_audit() -> None:
    n, key = _serial("joblib_audit")
    op.create_table(
        "joblib_audit",
        n,
        _moment("at"),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("room_id", sa.String(length=128), nullable=True),
        _text("target"),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("request_id", sa.String(length=128), nullable=True),
        key,
    )
    op.create_index("ix_joblib_audit_at", "joblib_audit", ["at"])
    op.create_index("ix_joblib_audit_room_id_n", "joblib_audit", ["room_id", "n"])


def downgrade() -> None:
    for table in (
        *("joblib_audit", "joblib_sweep_cycle", "joblib_server"),
        *("joblib_statistic_position", "joblib_statistic"),
    ):
        op.drop_table(table)
    op.drop_index("ix_joblib_task_unsuccessful", "joblib_task")
    op.drop_index("ix_joblib_task_ended", "joblib_task")
    op.drop_index("ix_joblib_worker_created_at", "joblib_worker")
    for table, columns in _NEW.items():
        for name in columns:
            op.drop_column(table, name)
