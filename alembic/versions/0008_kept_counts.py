"""Add the kept counts of tasks: by room, job and status, and by block of a queue."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

# Each submit and each claim updates a row. Free space in the pages keeps the new versions there, so that no
# index changes; dead rows are removed early.
_STORAGE = {
    "fillfactor": "50",
    "autovacuum_vacuum_scale_factor": "0.01",
    "autovacuum_vacuum_threshold": "200",
    "autovacuum_analyze_scale_factor": "0.02",
    "autovacuum_vacuum_cost_delay": "0",
}


def upgrade() -> None:
    op.create_table(
        "joblib_room_count",
        sa.Column("room_id", sa.String(length=128), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        *[
            sa.Column(name, sa.Integer(), nullable=False)
            for name in ("total", "pending", "failed", "cancelled")
        ],
        sa.PrimaryKeyConstraint("room_id", "job_id", "part", name=op.f("pk_joblib_room_count")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "joblib_queue_block",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("lane", sa.Integer(), nullable=False),
        sa.Column("block", sa.BigInteger(), nullable=False),
        sa.Column("queued", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "lane", "block", name=op.f("pk_joblib_queue_block")),
        sqlite_with_rowid=False,
    )
    op.execute(
        "INSERT INTO joblib_room_count (room_id, job_id, part, total, pending, failed, cancelled) "
        "SELECT room_id, job_id, 0, count(*), count(*) FILTER (WHERE status = 'pending'), "
        "count(*) FILTER (WHERE status = 'failed'), count(*) FILTER (WHERE status = 'cancelled') "
        "FROM joblib_task GROUP BY room_id, job_id"
    )
    op.execute(
        "INSERT INTO joblib_queue_block (job_id, lane, block, queued) "
        "SELECT job_id, lane, seq >> 12, count(*) FROM joblib_task "
        "WHERE status = 'pending' AND run_at IS NULL GROUP BY job_id, lane, seq >> 12"
    )
    if op.get_bind().dialect.name == "postgresql":
        listed = ", ".join(f"{name} = {value}" for name, value in _STORAGE.items())
        for table in ("joblib_room_count", "joblib_queue_block"):
            op.execute(f"ALTER TABLE {table} SET ({listed})")


def downgrade() -> None:
    op.drop_table("joblib_queue_block")
    op.drop_table("joblib_room_count")
