"""Add the functions of a host that are called after the end of a task."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_HOOKED = sa.text("on_end IS NOT NULL AND completed_at IS NOT NULL")


def upgrade() -> None:
    for name, kind in (
        ("on_end", sa.Text()),
        ("on_end_attempts", sa.Integer()),
        ("on_end_due_at", sa.DateTime(timezone=True)),
    ):
        op.add_column("joblib_task", sa.Column(name, kind, nullable=True))
    op.create_index(
        "ix_joblib_task_on_end",
        "joblib_task",
        ["on_end", "on_end_due_at"],
        sqlite_where=_HOOKED,
        postgresql_where=_HOOKED,
    )


def downgrade() -> None:
    op.drop_index("ix_joblib_task_on_end", "joblib_task")
    for name in ("on_end", "on_end_attempts", "on_end_due_at"):
        op.drop_column("joblib_task", name)
