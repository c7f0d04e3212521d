"""Add tasks that wait for others, their predecessors, and the ends that are yet to be handled."""

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

_SUCCESSOR, _EDGE, _WAVE = "joblib_successor", "joblib_edge", "joblib_wave"


def upgrade() -> None:
    op.create_table(
        _SUCCESSOR,
        sa.Column(
            "task_seq",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=False,
            nullable=False,
        ),
        sa.Column("on_failure", sa.String(16), nullable=False),
        sa.Column("run_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("fills", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("released_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("task_seq", name=op.f(f"pk_{_SUCCESSOR}")),
    )
    op.create_table(
        _EDGE,
        sa.Column("task_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("source", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("predecessor", sa.Uuid(), nullable=False),
        sa.Column("status", sa.String(16), nullable=True),
        sa.Column("is_open", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.PrimaryKeyConstraint("task_seq", "source", name=op.f(f"pk_{_EDGE}")),
        sqlite_with_rowid=False,
    )
    where = sa.text("is_open")
    columns = ["source", "task_seq"]
    op.create_index(f"ix_{_EDGE}_open", _EDGE, columns, sqlite_where=where, postgresql_where=where)
    op.create_index(f"ix_{_EDGE}_source", _EDGE, columns)
    op.create_table(
        _WAVE,
        sa.Column(
            "n", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("source", sa.BigInteger(), nullable=False),
        sa.Column("cancels", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.PrimaryKeyConstraint("n", name=op.f(f"pk_{_WAVE}")),
    )


def downgrade() -> None:
    for table in (_WAVE, _EDGE, _SUCCESSOR):
        op.drop_table(table)
