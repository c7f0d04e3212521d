"""Add when the users' rates of submits were written, to recognize a clock that went back."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("joblib_submit_rate", sa.Column("written_at", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("joblib_submit_rate", "written_at")
