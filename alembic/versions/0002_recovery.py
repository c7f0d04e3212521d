"""Add job policies, task schedules and attempts, draining workers and runtime settings."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_NEW = {
    "joblib_job": [
        sa.Column("paused", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("has_lanes", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("policy", sa.Text(), nullable=True),
        sa.Column("max_in_flight", sa.Integer(), nullable=True),
    ],
    "joblib_worker": [
        sa.Column("draining", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("max_tasks", sa.Integer(), nullable=True),
    ],
    "joblib_task": [
        sa.Column("lane", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("run_at", _TIME, nullable=True),
        sa.Column("expires_at", _TIME, nullable=True),
        sa.Column("deadline", _TIME, nullable=True),
        sa.Column("max_attempts", sa.Integer(), nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("crashes", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("claim_id", sa.Uuid(), nullable=True),
        sa.Column("error_code", sa.String(length=64), nullable=True),
    ],
}
_INDEXES = {
    "ix_joblib_task_queue": (["job_id", "lane", "seq"], "status = 'pending' AND run_at IS NULL"),
    "ix_joblib_task_turn": (["job_id", "room_id", "lane", "seq"], "status = 'pending' AND run_at IS NULL"),
    "ix_joblib_task_scheduled": (["run_at"], "status = 'pending' AND run_at IS NOT NULL"),
    "ix_joblib_task_expiring": (["expires_at"], "status = 'pending' AND expires_at IS NOT NULL"),
}


def upgrade() -> None:
    for table, columns in _NEW.items():
        for column in columns:
            op.add_column(table, column)
    # In one statement, for SQLite adds no constraint later on.
    op.execute(
        "ALTER TABLE joblib_job ADD COLUMN scheduled INTEGER DEFAULT 0 NOT NULL "
        "CONSTRAINT ck_joblib_job_scheduled_counts CHECK (scheduled >= 0)"
    )
    op.drop_index("ix_joblib_task_pending", "joblib_task")
    for name, (columns, where) in _INDEXES.items():
        matching = sa.text(where)
        op.create_index(name, "joblib_task", columns, sqlite_where=matching, postgresql_where=matching)
    op.create_table(
        "joblib_attempt",
        sa.Column(
            "n", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("task_seq", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("worker_id", sa.Uuid(), nullable=True),
        sa.Column("claimed_at", _TIME, nullable=True),
        sa.Column("started_at", _TIME, nullable=True),
        sa.Column("completed_at", _TIME, nullable=True),
        sa.Column("ended_at", _TIME, nullable=False),
        sa.Column("run_at", _TIME, nullable=True),
        sa.Column("error_code", sa.String(length=64), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("n", name=op.f("pk_joblib_attempt")),
    )
    op.create_index("ix_joblib_attempt_task_seq", "joblib_attempt", ["task_seq"])
    op.create_table(
        "joblib_switch",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_joblib_switch")),
    )


def downgrade() -> None:
    op.drop_table("joblib_switch")
    op.drop_table("joblib_attempt")
    for name in _INDEXES:
        op.drop_index(name, "joblib_task")
    op.create_index(
        "ix_joblib_task_pending",
        "joblib_task",
        ["job_id", "seq"],
        sqlite_where=sa.text("status = 'pending'"),
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.execute("ALTER TABLE joblib_job DROP COLUMN scheduled")
    for table, columns in _NEW.items():
        for column in columns:
            op.drop_column(table, column.name)
