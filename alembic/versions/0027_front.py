"""Add an index of the tasks of all queues, in the order of claims."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_INDEX, _TASK = "ix_joblib_task_front", "joblib_task"
_IS_QUEUED = sa.text("status = 'pending' AND run_at IS NULL AND attempt >= 0")


def upgrade() -> None:
    op.create_index(_INDEX, _TASK, ["lane", "seq"], sqlite_where=_IS_QUEUED, postgresql_where=_IS_QUEUED)


def downgrade() -> None:
    op.drop_index(_INDEX, _TASK)
