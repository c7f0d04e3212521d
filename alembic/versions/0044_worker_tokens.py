"""Add what tokens of workers grant: who issued them, how many tasks they may claim, and their labels."""

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None

_TABLE = "joblib_token"


def upgrade() -> None:
    op.add_column(_TABLE, sa.Column("issued_by", sa.Text(), nullable=True))
    op.add_column(_TABLE, sa.Column("max_tasks", sa.Integer(), nullable=True))
    op.add_column(_TABLE, sa.Column("claims", sa.Integer(), nullable=True))
    op.add_column(_TABLE, sa.Column("labels", sa.Text(), nullable=True))


def downgrade() -> None:
    # A token with a limit would have more rights without it.
    tokens = sa.table(_TABLE, sa.column("issued_by"))
    op.execute(sa.delete(tokens).where(tokens.c.issued_by.is_not(None)))
    for name in ("labels", "claims", "max_tasks", "issued_by"):
        op.drop_column(_TABLE, name)
