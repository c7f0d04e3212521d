"""Add webhooks, the outbox of their events, and which events the webhooks of a room want."""

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

_STREAM, _WEBHOOK, _TASK, _OUTBOX = (
    *("joblib_room_stream", "joblib_webhook"),
    *("joblib_task_webhook", "joblib_outbox"),
)
_SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column(_STREAM, sa.Column("webhook_events", sa.Text(), nullable=True))
    op.create_table(
        _WEBHOOK,
        sa.Column("n", _SEQUENCE, autoincrement=True, nullable=False),
        sa.Column("webhook_id", sa.Uuid(), nullable=False),
        sa.Column("room_id", sa.String(128), nullable=False),
        sa.Column("name", sa.String(128), nullable=True),
        sa.Column("owner_id", sa.String(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("events", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=True),
        sa.Column("previous_secret", sa.Text(), nullable=True),
        _time("previous_until", nullable=True),
        *(_time(name) for name in ("created_at", "updated_at", "used_at")),
        _time("disabled_at", nullable=True),
        sa.Column("disabled_reason", sa.Text(), nullable=True),
        sa.Column("failures", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        _time("due_at", nullable=True),
        sa.Column("lease", sa.Uuid(), nullable=True),
        sa.PrimaryKeyConstraint("n", name=op.f(f"pk_{_WEBHOOK}")),
        sa.UniqueConstraint("webhook_id", name=op.f(f"uq_{_WEBHOOK}_webhook_id")),
        sa.UniqueConstraint("room_id", "name", name=op.f(f"uq_{_WEBHOOK}_room_id_name")),
    )
    _index(f"ix_{_WEBHOOK}_due", _WEBHOOK, ["due_at"], "due_at IS NOT NULL")
    _index(f"ix_{_WEBHOOK}_unnamed", _WEBHOOK, ["used_at"], "name IS NULL")
    op.create_index(f"ix_{_WEBHOOK}_owner_id", _WEBHOOK, ["owner_id"])
    op.create_table(
        _TASK,
        sa.Column("task_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("webhook_n", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("task_seq", name=op.f(f"pk_{_TASK}")),
    )
    op.create_index(f"ix_{_TASK}_webhook_n", _TASK, ["webhook_n"])
    op.create_table(
        _OUTBOX,
        sa.Column("seq", _SEQUENCE, autoincrement=True, nullable=False),
        sa.Column("webhook_n", sa.BigInteger(), nullable=False),
        sa.Column("room_id", sa.String(128), nullable=False),
        sa.Column("webhook", sa.String(128), nullable=True),
        sa.Column("message", sa.Uuid(), nullable=False),
        sa.Column("event", sa.String(64), nullable=False),
        sa.Column("task_id", sa.Uuid(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        _time("created_at"),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        *(_time(name, nullable=True) for name in ("attempted_at", "ended_at")),
        sa.Column("delivered", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("status_code", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name=op.f(f"pk_{_OUTBOX}")),
    )
    _index(f"ix_{_OUTBOX}_waiting", _OUTBOX, ["webhook_n", "seq"], "ended_at IS NULL")
    op.create_index(f"ix_{_OUTBOX}_room", _OUTBOX, ["room_id", "seq"])
    _index(f"ix_{_OUTBOX}_task", _OUTBOX, ["task_id", "seq"], "task_id IS NOT NULL")
    op.create_index(f"ix_{_OUTBOX}_created_at", _OUTBOX, ["created_at"])


def downgrade() -> None:
    for table in (_OUTBOX, _TASK, _WEBHOOK):
        op.drop_table(table)
    with op.batch_alter_table(_STREAM) as table:
        table.drop_column("webhook_events")


def _index(name: str, table: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)


def _time(name: str, *, nullable: bool = False) -> sa.Column[sa.DateTime]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)
