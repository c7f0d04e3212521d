"""Add limits of jobs: the keys of tasks, their queues, and what limits count."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

_TASK, _JOB = "joblib_task", "joblib_job"
_QUEUE, _WAIT, _SLOT = "joblib_limit_queue", "joblib_limit_wait", "joblib_limit_slot"
# The indexes with conditions: the table, the columns, the condition.
_INDEXES = {
    "ix_joblib_task_limited": (
        _TASK,
        ["job_id", "room_id", "limit_key", "lane", "seq"],
        "status = 'pending' AND run_at IS NULL AND limit_key IS NOT NULL",
    ),
    "ix_joblib_limit_queue_open": (_QUEUE, ["job_id", "lane", "seq"], "blocked_by IS NULL"),
    "ix_joblib_limit_queue_room": (_QUEUE, ["job_id", "room_id", "lane", "seq"], "blocked_by IS NULL"),
    "ix_joblib_limit_queue_blocked": (
        _QUEUE,
        ["job_id", "blocked_by", "lane", "seq"],
        "blocked_by IS NOT NULL",
    ),
    "ix_joblib_limit_slot_held": (_SLOT, ["bucket_id"], "NOT freed"),
    "ix_joblib_limit_slot_freed": (_SLOT, ["job_id"], "freed"),
    "ix_joblib_limit_wait_due": (_WAIT, ["job_id"], "is_due"),
    "ix_joblib_limit_wait_rate": (_WAIT, ["job_id", "ready_at"], "ready_at IS NOT NULL"),
    "ix_joblib_limit_wait_ready": (_WAIT, ["ready_at"], "NOT is_due AND ready_at IS NOT NULL"),
    "ix_joblib_limit_wait_name": (_WAIT, ["name"], "name IS NOT NULL"),
}


def upgrade() -> None:
    op.add_column(_JOB, sa.Column("limits", sa.Text(), nullable=True))
    op.add_column(_TASK, sa.Column("limit_key", sa.Text(), nullable=True))
    op.create_table(
        "joblib_limit",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        _time("created_at"),
        _time("updated_at"),
        sa.Column("updated_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_joblib_limit")),
    )
    op.create_table(
        "joblib_limit_bucket",
        sa.Column("id", sa.Uuid(), nullable=False),
        _time("next_at"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_joblib_limit_bucket")),
    )
    op.create_index("ix_joblib_limit_bucket_next_at", "joblib_limit_bucket", ["next_at"])
    op.create_table(
        _SLOT,
        sa.Column("task_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("bucket_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("freed", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.PrimaryKeyConstraint("task_seq", "bucket_id", name=op.f(f"pk_{_SLOT}")),
    )
    op.create_table(
        _QUEUE,
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("room_id", sa.String(128), nullable=False),
        sa.Column("limit_key", sa.String(256), nullable=False),
        sa.Column("lane", sa.Integer(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("blocked_by", sa.Uuid(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "room_id", "limit_key", name=op.f(f"pk_{_QUEUE}")),
        sa.ForeignKeyConstraint(["job_id"], [f"{_JOB}.id"], name=op.f(f"fk_{_QUEUE}_job_id")),
    )
    op.create_table(
        _WAIT,
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("bucket_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(64), nullable=True),
        _time("ready_at", nullable=True),
        sa.Column("is_due", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "bucket_id", name=op.f(f"pk_{_WAIT}")),
        sa.ForeignKeyConstraint(["job_id"], [f"{_JOB}.id"], name=op.f(f"fk_{_WAIT}_job_id")),
    )
    op.create_index(f"ix_{_WAIT}_bucket_id", _WAIT, ["bucket_id"])
    for name, (table, columns, condition) in _INDEXES.items():
        where = sa.text(condition)
        op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    op.drop_index("ix_joblib_task_limited", _TASK)
    for table in (_WAIT, _QUEUE, _SLOT, "joblib_limit_bucket", "joblib_limit"):
        op.drop_table(table)
    op.drop_column(_TASK, "limit_key")
    op.drop_column(_JOB, "limits")


def _time(name: str, *, nullable: bool = False) -> sa.Column[sa.DateTime]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)
