"""Add what becomes of a job without workers, since when it has none, and who registered it last."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_JOB = "joblib_job"
_NOW = {"sqlite": "strftime('%Y-%m-%d %H:%M:%f000', 'now')", "postgresql": "now()"}


def upgrade() -> None:
    op.add_column(_JOB, sa.Column("without_workers", sa.String(8), nullable=True))
    op.add_column(_JOB, sa.Column("unserved_since", sa.DateTime(timezone=True), nullable=True))
    op.add_column(_JOB, sa.Column("registered_by", sa.Text(), nullable=True))
    # A job whose workers left before counts as without workers since the upgrade.
    op.execute(
        f"UPDATE joblib_job SET unserved_since = {_NOW[op.get_bind().dialect.name]} "  # noqa: S608 - no input
        "WHERE NOT deleted AND room_id <> '@internal' "
        "AND NOT EXISTS (SELECT 1 FROM joblib_worker_job WHERE joblib_worker_job.job_id = joblib_job.id)"
    )
    where = sa.text("unserved_since IS NOT NULL")
    op.create_index(
        "ix_joblib_job_unserved", _JOB, ["unserved_since"], sqlite_where=where, postgresql_where=where
    )


def downgrade() -> None:
    op.drop_index("ix_joblib_job_unserved", _JOB)
    for name in ("registered_by", "unserved_since", "without_workers"):
        op.drop_column(_JOB, name)
