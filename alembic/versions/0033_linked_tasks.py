"""Add the mark of tasks whose end concerns others."""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("joblib_task", sa.Column("linked", sa.Boolean(), nullable=True))


def downgrade() -> None:
    op.drop_column("joblib_task", "linked")
