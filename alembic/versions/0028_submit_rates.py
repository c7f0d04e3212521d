"""Add when the users' rates of submits are full again."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

_TABLE = "joblib_submit_rate"


def upgrade() -> None:
    op.create_table(
        _TABLE,
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("full_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("user_id", name=op.f(f"pk_{_TABLE}")),
    )
    op.create_index(f"ix_{_TABLE}_full_at", _TABLE, ["full_at"])


def downgrade() -> None:
    op.drop_table(_TABLE)
