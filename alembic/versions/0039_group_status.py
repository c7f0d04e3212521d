"""Index the held tasks of groups beside the failed ones, so that no task of another group is read for them."""

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

_TASK, _FAILED, _STATUS = "joblib_task", "ix_joblib_task_group_failed", "ix_joblib_task_group_status"


def upgrade() -> None:
    _create(_STATUS, ["group_id", "status", "seq"], "status IN ('claimed', 'failed', 'running')")
    op.drop_index(_FAILED, _TASK)


def downgrade() -> None:
    _create(_FAILED, ["group_id", "seq"], "status = 'failed'")
    op.drop_index(_STATUS, _TASK)


def _create(name: str, columns: list[str], condition: str) -> None:
    where = sa.text(f"group_id IS NOT NULL AND {condition}")
    op.create_index(name, _TASK, columns, sqlite_where=where, postgresql_where=where)
