"""Add groups of tasks and their counts, and the group of a task."""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

_TASK, _GROUP, _COUNT = "joblib_task", "joblib_group", "joblib_group_count"
# The indexes with conditions: the table, the columns, the condition.
_INDEXES = {
    "ix_joblib_task_group": (_TASK, ["group_id", "seq"], "group_id IS NOT NULL"),
    "ix_joblib_task_group_failed": (_TASK, ["group_id", "seq"], "group_id IS NOT NULL AND status = 'failed'"),
    "ix_joblib_group_due": (_GROUP, ["due_at"], "due_at IS NOT NULL"),
    "ix_joblib_group_open": (_GROUP, ["created_by"], "ended_at IS NULL"),
    "ix_joblib_group_ended": (_GROUP, ["ended_at"], "ended_at IS NOT NULL"),
    "ix_joblib_group_error": (_GROUP, ["n"], "error IS NOT NULL"),
}


def upgrade() -> None:
    op.add_column(_TASK, sa.Column("group_id", sa.Uuid(), nullable=True))
    op.create_table(
        _GROUP,
        sa.Column(
            "n", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("room_id", sa.String(128), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        _time("created_at", nullable=False),
        sa.Column("sealed", sa.Boolean(), server_default=sa.false(), nullable=False),
        *(_time(name) for name in ("expires_at", "due_at", "ended_at")),
        sa.Column("on_end", sa.Text(), nullable=True),
        sa.Column("on_end_schema", sa.String(64), nullable=True),
        sa.Column("on_end_task", sa.Uuid(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("n", name=op.f(f"pk_{_GROUP}")),
        sa.UniqueConstraint("id", name=op.f(f"uq_{_GROUP}_id")),
    )
    op.create_index(f"ix_{_GROUP}_room", _GROUP, ["room_id", "n"])
    op.create_table(
        _COUNT,
        sa.Column("group_id", sa.Uuid(), nullable=False),
        sa.Column("stripe", sa.Integer(), nullable=False),
        *(
            sa.Column(name, sa.Integer(), nullable=False)
            for name in ("open", "completed", "failed", "cancelled")
        ),
        sa.PrimaryKeyConstraint("group_id", "stripe", name=op.f(f"pk_{_COUNT}")),
        sqlite_with_rowid=False,
    )
    if op.get_bind().dialect.name == "postgresql":
        # Counts are written again and again: they stay in their pages.
        op.execute(f"ALTER TABLE {_COUNT} SET (fillfactor = 50)")
    for name, (table, columns, condition) in _INDEXES.items():
        where = sa.text(condition)
        op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    for name, (table, _, _) in _INDEXES.items():
        if table == _TASK:
            op.drop_index(name, _TASK)
    op.drop_table(_COUNT)
    op.drop_table(_GROUP)
    op.drop_column(_TASK, "group_id")


def _time(name: str, *, nullable: bool = True) -> sa.Column[sa.DateTime]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)
