"""Add whose answer is stored for an idempotency key."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("joblib_idempotency_key", sa.Column("user_id", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("joblib_idempotency_key", "user_id")
