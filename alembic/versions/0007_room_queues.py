"""Add the queues of rooms and the turns of fair claims; set how PostgreSQL cleans up the queue's tables."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_TURN = [
    sa.Column("fair_round", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
    sa.Column("fair_room", sa.String(length=128), nullable=False, server_default=sa.text("''")),
]
_CLEANUP = {
    "autovacuum_vacuum_scale_factor": "0.01",
    "autovacuum_vacuum_threshold": "1000",
    "autovacuum_analyze_scale_factor": "0.02",
    "autovacuum_vacuum_cost_delay": "0",
}
# Each claim leaves dead rows at the beginning of a queue, so they are removed early. A job's row changes with
# each submit and claim, but its indexes do not: free space in its page keeps the new versions there.
_STORAGE = {
    "joblib_task": _CLEANUP,
    "joblib_room_queue": _CLEANUP,
    "joblib_worker": _CLEANUP | {"autovacuum_vacuum_threshold": "200"},
    "joblib_job": _CLEANUP | {"autovacuum_vacuum_threshold": "200", "fillfactor": "80"},
}


def upgrade() -> None:
    for column in _TURN:
        op.add_column("joblib_job", column)
    op.create_table(
        "joblib_room_queue",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("room_id", sa.String(length=128), nullable=False),
        sa.Column("lane", sa.Integer(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["joblib_job.id"], name=op.f("fk_joblib_room_queue_job_id")),
        sa.PrimaryKeyConstraint("job_id", "room_id", name=op.f("pk_joblib_room_queue")),
    )
    op.create_index("ix_joblib_room_queue_place", "joblib_room_queue", ["job_id", "lane", "seq"])
    op.create_index(op.f("ix_joblib_room_queue_room_id"), "joblib_room_queue", ["room_id"])
    op.execute(
        "INSERT INTO joblib_room_queue (job_id, room_id, lane, seq) "
        "SELECT job_id, room_id, min(lane), min(seq) FROM joblib_task "
        "WHERE status = 'pending' AND run_at IS NULL GROUP BY job_id, room_id"
    )
    if op.get_bind().dialect.name == "postgresql":
        for table, values in _STORAGE.items():
            listed = ", ".join(f"{name} = {value}" for name, value in values.items())
            op.execute(f"ALTER TABLE {table} SET ({listed})")


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        for table, values in _STORAGE.items():
            op.execute(f"ALTER TABLE {table} RESET ({', '.join(values)})")
    op.drop_table("joblib_room_queue")
    for column in reversed(_TURN):
        op.drop_column("joblib_job", column.name)
