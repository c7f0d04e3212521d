"""Add labels of workers, requirements of queues, and workers that lack what a job requires."""

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None

_UNFIT = "joblib_unfit_worker"


def upgrade() -> None:
    op.add_column("joblib_worker", sa.Column("labels", sa.Text(), nullable=True))
    op.add_column("joblib_job", sa.Column("requires", sa.Text(), nullable=True))
    op.create_table(
        _UNFIT,
        sa.Column("worker_id", sa.Uuid(), autoincrement=False, nullable=False),
        sa.Column("job_id", sa.Uuid(), autoincrement=False, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["joblib_job.id"], name=op.f(f"fk_{_UNFIT}_job_id")),
        sa.ForeignKeyConstraint(["worker_id"], ["joblib_worker.id"], name=op.f(f"fk_{_UNFIT}_worker_id")),
        sa.PrimaryKeyConstraint("worker_id", "job_id", name=op.f(f"pk_{_UNFIT}")),
    )
    op.create_index(op.f(f"ix_{_UNFIT}_job_id"), _UNFIT, ["job_id"])


def downgrade() -> None:
    # Their tasks would run on any worker.
    if op.get_bind().scalar(sa.text("SELECT count(*) FROM joblib_job WHERE requires IS NOT NULL")):
        raise RuntimeError(
            "Jobs have queues of tasks with requirements, which the earlier schema does not know: let these tasks "
            "end, purge them, and wait until the pruner has deleted their queues"
        )
    # On SQLite this begins the transaction.
    op.execute(sa.table(_UNFIT).delete())
    op.drop_table(_UNFIT)
    op.drop_column("joblib_job", "requires")
    op.drop_column("joblib_worker", "labels")
