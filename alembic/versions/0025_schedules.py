"""Add schedules, and which of them submitted a task."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

_TASK, _SCHEDULE = "joblib_task", "joblib_schedule"
# The indexes of tasks that a schedule submitted: unique, its columns, its condition.
_INDEXES = {
    "ix_joblib_task_schedule": (True, ["room_id", "schedule", "due_at"], "schedule IS NOT NULL"),
    "ix_joblib_task_schedule_live": (
        False,
        ["room_id", "schedule"],
        "schedule IS NOT NULL AND completed_at IS NULL",
    ),
}
_IS_DUE = sa.text("next_due_at IS NOT NULL AND NOT paused")
_IS_FAILING = sa.text("error IS NOT NULL AND NOT paused")


def upgrade() -> None:
    op.add_column(_TASK, sa.Column("schedule", sa.String(128), nullable=True))
    op.add_column(_TASK, _time("due_at", nullable=True))
    for name, (unique, columns, condition) in _INDEXES.items():
        where = sa.text(condition)
        op.create_index(name, _TASK, columns, unique=unique, sqlite_where=where, postgresql_where=where)
    op.create_table(
        _SCHEDULE,
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("room_id", sa.String(128), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("owner_id", sa.String(), nullable=False),
        sa.Column("job_name", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("paused", sa.Boolean(), server_default=sa.false(), nullable=False),
        *(_time(name) for name in ("created_at", "updated_at", "anchor_at")),
        *(_time(name, nullable=True) for name in ("next_due_at", "last_due_at")),
        sa.Column("last_task_id", sa.Uuid(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        _time("error_at", nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{_SCHEDULE}")),
        sa.UniqueConstraint("room_id", "name", name=op.f(f"uq_{_SCHEDULE}_room_id_name")),
    )
    op.create_index(
        f"ix_{_SCHEDULE}_due", _SCHEDULE, ["next_due_at"], sqlite_where=_IS_DUE, postgresql_where=_IS_DUE
    )
    op.create_index(
        f"ix_{_SCHEDULE}_failing",
        _SCHEDULE,
        ["error_at"],
        sqlite_where=_IS_FAILING,
        postgresql_where=_IS_FAILING,
    )
    op.create_index(f"ix_{_SCHEDULE}_owner_id", _SCHEDULE, ["owner_id"])


def downgrade() -> None:
    op.drop_table(_SCHEDULE)
    for name in _INDEXES:
        op.drop_index(name, _TASK)
    op.drop_column(_TASK, "due_at")
    op.drop_column(_TASK, "schedule")


def _time(name: str, *, nullable: bool = False) -> sa.Column[sa.DateTime]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)
