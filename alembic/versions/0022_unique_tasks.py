"""Let tasks hold unique keys."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_TASK, _INDEX = "joblib_task", "uq_joblib_task_unique_id"
_HELD = sa.text("""unique_id IS NOT NULL AND (unique_until IS NULL OR (completed_at IS NULL AND (
    unique_until = 'ended'
    OR (
        started_at IS NULL
        AND attempt = unstarted + CASE WHEN status = 'claimed' THEN 1 ELSE 0 END
    )
)))""")


def upgrade() -> None:
    op.add_column(_TASK, sa.Column("unique_id", sa.Uuid(), nullable=True))
    op.add_column(_TASK, sa.Column("unique_text", sa.Text(), nullable=True))
    op.add_column(_TASK, sa.Column("unique_until", sa.Text(), nullable=True))
    op.add_column(_TASK, sa.Column("unique_expires_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(_INDEX, _TASK, ["unique_id"], unique=True, sqlite_where=_HELD, postgresql_where=_HELD)


def downgrade() -> None:
    op.drop_index(_INDEX, _TASK)
    for name in ("unique_expires_at", "unique_until", "unique_text", "unique_id"):
        op.drop_column(_TASK, name)
