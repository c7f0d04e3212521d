"""Add when a job was soft-deleted, and find the room counts of a job."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_JOB, _COUNT = "joblib_job", "joblib_room_count"
_NOW = {"sqlite": "strftime('%Y-%m-%d %H:%M:%f000', 'now')", "postgresql": "now()"}


def upgrade() -> None:
    kind = op.get_bind().dialect.name
    op.add_column(_JOB, sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True))
    op.execute(f"UPDATE joblib_job SET deleted_at = {_NOW[kind]} WHERE deleted")  # noqa: S608 - no input
    op.create_index(
        "ix_joblib_job_deleted",
        _JOB,
        ["id"],
        sqlite_where=sa.text("deleted = 1"),
        postgresql_where=sa.text("deleted"),
    )
    op.create_index("ix_joblib_room_count_job_id_room_id", _COUNT, ["job_id", "room_id"])


def downgrade() -> None:
    op.drop_index("ix_joblib_room_count_job_id_room_id", _COUNT)
    op.drop_index("ix_joblib_job_deleted", _JOB)
    op.drop_column(_JOB, "deleted_at")
