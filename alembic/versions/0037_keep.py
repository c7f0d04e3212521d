"""Add how long the ended tasks of a job are kept."""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

_JOB = "joblib_job"


def upgrade() -> None:
    op.add_column(_JOB, sa.Column("keep", sa.Text(), nullable=True))
    where = sa.text("keep IS NOT NULL")
    op.create_index("ix_joblib_job_keep", _JOB, ["id"], sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    op.drop_index("ix_joblib_job_keep", _JOB)
    op.drop_column(_JOB, "keep")
