"""Add to groups the task whose token has made them."""

import sqlalchemy as sa
from alembic import op

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None

_TABLE = "joblib_group"


def upgrade() -> None:
    op.add_column(_TABLE, sa.Column("task_id", sa.Uuid(), nullable=True))


def downgrade() -> None:
    op.drop_column(_TABLE, "task_id")
