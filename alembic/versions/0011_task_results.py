"""Add the stored results of tasks."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_RESULT = "joblib_task_result"
_TOTAL = "joblib_task_result_total"
_SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_HAS_CONTENT = sa.text("content_key IS NOT NULL")


def upgrade() -> None:
    op.create_table(
        _RESULT,
        sa.Column("n", _SEQUENCE, autoincrement=True, nullable=False),
        sa.Column("task_seq", sa.BigInteger(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("content_key", sa.String(length=64), nullable=True),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("content_type", sa.String(length=255), nullable=False),
        sa.Column("etag", sa.String(length=64), nullable=False),
        sa.Column("filename", sa.Text(), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("n", name=op.f(f"pk_{_RESULT}")),
        sa.UniqueConstraint("task_seq", name=op.f(f"uq_{_RESULT}_task_seq")),
    )
    op.create_index(
        "ix_joblib_task_result_expiring",
        _RESULT,
        ["expires_at"],
        sqlite_where=_HAS_CONTENT,
        postgresql_where=_HAS_CONTENT,
    )
    op.create_table(
        _TOTAL,
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("size >= 0", name=op.f(f"ck_{_TOTAL}_size_counts")),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{_TOTAL}")),
    )


def downgrade() -> None:
    op.drop_table(_TOTAL)
    op.drop_table(_RESULT)
