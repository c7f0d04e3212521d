"""Count stored results for the users who submitted their tasks."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_RESULT = "joblib_task_result"
_SHARE = "joblib_task_result_share"
_INDEX = "ix_joblib_task_result_loose"
_IS_LOOSE = sa.text("task_seq IS NULL AND content_key IS NOT NULL")


def upgrade() -> None:
    op.add_column(_RESULT, sa.Column("user_id", sa.Text(), nullable=True))
    op.create_index(_INDEX, _RESULT, ["n"], sqlite_where=_IS_LOOSE, postgresql_where=_IS_LOOSE)
    op.create_table(
        _SHARE,
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("size >= 0", name=op.f(f"ck_{_SHARE}_size_counts")),
        sa.PrimaryKeyConstraint("user_id", name=op.f(f"pk_{_SHARE}")),
    )
    op.execute(
        "UPDATE joblib_task_result SET user_id = (SELECT created_by FROM joblib_task WHERE seq = task_seq) "
        "WHERE task_seq IS NOT NULL AND content_key IS NOT NULL"
    )
    # Each result counts 1024 bytes more than its content, as `RESULT_BYTES` of the store.
    op.execute(
        "INSERT INTO joblib_task_result_share (user_id, size) SELECT user_id, sum(size + 1024) "
        "FROM joblib_task_result WHERE user_id IS NOT NULL GROUP BY user_id"
    )


def downgrade() -> None:
    op.drop_table(_SHARE)
    op.drop_index(_INDEX, _RESULT)
    with op.batch_alter_table(_RESULT) as table:
        table.drop_column("user_id")
