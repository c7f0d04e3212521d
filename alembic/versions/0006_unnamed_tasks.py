"""Create the table of held tasks that their workers' heartbeats do not name."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_TABLE = "joblib_unnamed_task"


def upgrade() -> None:
    op.create_table(
        _TABLE,
        sa.Column("task_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("unnamed_since", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("task_seq", name=op.f(f"pk_{_TABLE}")),
    )


def downgrade() -> None:
    op.drop_table(_TABLE)
