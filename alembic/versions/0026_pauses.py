"""Add until when a job is paused, and the pauses of rooms and of the queue."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

_JOB, _PAUSE = "joblib_job", "joblib_pause"


def upgrade() -> None:
    op.add_column(_JOB, sa.Column("paused_until", sa.DateTime(timezone=True), nullable=True))
    where = sa.text("paused_until IS NOT NULL")
    op.create_index(
        "ix_joblib_job_paused_until", _JOB, ["paused_until"], sqlite_where=where, postgresql_where=where
    )
    op.create_table(
        _PAUSE,
        sa.Column("room_id", sa.String(128), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("paused_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("paused_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("room_id", name=op.f(f"pk_{_PAUSE}")),
    )


def downgrade() -> None:
    op.drop_table(_PAUSE)
    op.drop_index("ix_joblib_job_paused_until", _JOB)
    op.drop_column(_JOB, "paused_until")
