"""Add indexes for the schedules that have run last, and for the tokens that end next."""

import sqlalchemy as sa
from alembic import op

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None

_INDEXES = (
    ("ix_joblib_schedule_ran", "joblib_schedule", "last_due_at", "last_task_id IS NOT NULL AND NOT paused"),
    ("ix_joblib_token_ending", "joblib_token", "expires_at", "expires_at IS NOT NULL AND issued_by IS NULL"),
)


def upgrade() -> None:
    for name, table, column, where in _INDEXES:
        condition = sa.text(where)
        op.create_index(name, table, [column], postgresql_where=condition, sqlite_where=condition)


def downgrade() -> None:
    for name, table, _, _ in _INDEXES:
        op.drop_index(name, table)
