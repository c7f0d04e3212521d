"""Add to servers the internal jobs for which they have executors."""

import sqlalchemy as sa
from alembic import op

revision = "0053"
down_revision = "0052"
branch_labels = None
depends_on = None

_TABLE = "joblib_server"


def upgrade() -> None:
    op.add_column(_TABLE, sa.Column("internal_jobs", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column(_TABLE, "internal_jobs")
