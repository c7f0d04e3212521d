"""Add the progress, the log and the failure of attempts."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_DETAIL = "joblib_attempt_detail"
_LOG = "joblib_task_log"
# A running task updates its row up to a few times a second. Free space in the pages keeps the new versions
# there; dead rows are removed early.
_STORAGE = {
    "fillfactor": "50",
    "autovacuum_vacuum_scale_factor": "0.01",
    "autovacuum_vacuum_threshold": "200",
    "autovacuum_analyze_scale_factor": "0.02",
    "autovacuum_vacuum_cost_delay": "0",
}


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), server_default=sa.text("0"), nullable=False)


def upgrade() -> None:
    op.create_table(
        _DETAIL,
        sa.Column("task_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("progress", sa.Text(), nullable=True),
        sa.Column("progress_at", sa.DateTime(timezone=True), nullable=True),
        _count("log_last"),
        _count("log_lines"),
        _count("log_bytes"),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("full_traceback", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("task_seq", "attempt", name=op.f(f"pk_{_DETAIL}")),
    )
    op.create_table(
        _LOG,
        sa.Column("task_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("first", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("last", sa.Integer(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("lines", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("task_seq", "attempt", "first", name=op.f(f"pk_{_LOG}")),
    )
    if op.get_bind().dialect.name == "postgresql":
        listed = ", ".join(f"{name} = {value}" for name, value in _STORAGE.items())
        op.execute(f"ALTER TABLE {_DETAIL} SET ({listed})")


def downgrade() -> None:
    op.drop_table(_LOG)
    op.drop_table(_DETAIL)
