"""Rename the providers' column `heard_until` to `connected_until`."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.alter_column("joblib_provider", "heard_until", new_column_name="connected_until")


def downgrade() -> None:
    op.alter_column("joblib_provider", "connected_until", new_column_name="heard_until")
