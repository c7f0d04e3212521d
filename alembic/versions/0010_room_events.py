"""Add the event logs of watched rooms."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

# Each commit that changes a task of a watched room updates the room's row, and events live for minutes.
_OFTEN_CLEANED = {
    "autovacuum_vacuum_scale_factor": "0.01",
    "autovacuum_vacuum_threshold": "200",
    "autovacuum_analyze_scale_factor": "0.02",
    "autovacuum_vacuum_cost_delay": "0",
}
_STORAGE = {
    "joblib_room_stream": {"fillfactor": "50", **_OFTEN_CLEANED},
    "joblib_room_event": {**_OFTEN_CLEANED, "autovacuum_vacuum_threshold": "1000"},
}


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), autoincrement=False, nullable=False)


def upgrade() -> None:
    op.create_table(
        "joblib_room_stream",
        sa.Column("room_id", sa.String(length=128), nullable=False),
        _number("first_n"),
        _number("last_n"),
        _number("size"),
        sa.Column("max_events", sa.Integer(), nullable=False),
        _number("max_bytes"),
        sa.Column("watched_until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("room_id", name=op.f("pk_joblib_room_stream")),
    )
    op.create_table(
        "joblib_room_event",
        sa.Column("room_id", sa.String(length=128), nullable=False),
        _number("n"),
        sa.Column("task_id", sa.Uuid(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("room_id", "n", name=op.f("pk_joblib_room_event")),
    )
    op.create_index("ix_joblib_room_event_task", "joblib_room_event", ["task_id", "n"])
    if op.get_bind().dialect.name == "postgresql":
        for table, storage in _STORAGE.items():
            listed = ", ".join(f"{name} = {value}" for name, value in storage.items())
            op.execute(f"ALTER TABLE {table} SET ({listed})")


def downgrade() -> None:
    op.drop_table("joblib_room_event")
    op.drop_table("joblib_room_stream")
