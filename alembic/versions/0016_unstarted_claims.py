"""Count the claims of a task that ended before they started."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_COUNT = """
UPDATE joblib_task SET unstarted = (
    SELECT count(*) FROM joblib_attempt
    WHERE task_seq = seq AND joblib_attempt.claimed_at IS NOT NULL AND joblib_attempt.started_at IS NULL
) WHERE seq IN (SELECT task_seq FROM joblib_attempt WHERE claimed_at IS NOT NULL AND started_at IS NULL)
"""


def upgrade() -> None:
    op.add_column(
        "joblib_task", sa.Column("unstarted", sa.Integer(), nullable=False, server_default=sa.text("0"))
    )
    op.execute(_COUNT)


def downgrade() -> None:
    op.drop_column("joblib_task", "unstarted")
