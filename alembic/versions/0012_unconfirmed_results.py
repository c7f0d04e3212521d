"""Add when to check that the attempt of a stored result has completed."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_RESULT = "joblib_task_result"
_INDEX = "ix_joblib_task_result_check"
_IS_OPEN = sa.text("check_at IS NOT NULL")


def upgrade() -> None:
    op.add_column(_RESULT, sa.Column("check_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(_INDEX, _RESULT, ["check_at"], sqlite_where=_IS_OPEN, postgresql_where=_IS_OPEN)


def downgrade() -> None:
    op.drop_index(_INDEX, _RESULT)
    with op.batch_alter_table(_RESULT) as table:
        table.drop_column("check_at")
