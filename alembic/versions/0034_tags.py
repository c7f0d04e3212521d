"""Add the tags of tasks, their parents and the roots of their trees."""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

_TASK, _TAG = "joblib_task", "joblib_task_tag"


def upgrade() -> None:
    op.add_column(_TASK, sa.Column("parent", sa.Uuid(), nullable=True))
    op.add_column(_TASK, sa.Column("root", sa.Uuid(), nullable=True))
    op.add_column(_TASK, sa.Column("tags", sa.Text(), nullable=True))
    # No row has a value yet, so the indexes are empty.
    for name in ("parent", "root"):
        where = sa.text(f"{name} IS NOT NULL")
        op.create_index(
            f"ix_joblib_task_{name}", _TASK, [name, "seq"], sqlite_where=where, postgresql_where=where
        )
    op.create_table(
        _TAG,
        sa.Column("task_seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("tag", sa.String(64), nullable=False),
        sa.Column("room_id", sa.String(128), nullable=False),
        sa.PrimaryKeyConstraint("task_seq", "tag", name=op.f(f"pk_{_TAG}")),
    )
    op.create_index(f"ix_{_TAG}_tag_task_seq", _TAG, ["tag", "task_seq"])
    op.create_index(f"ix_{_TAG}_room_id_tag_task_seq", _TAG, ["room_id", "tag", "task_seq"])


def downgrade() -> None:
    op.drop_table(_TAG)
    for name in ("root", "parent"):
        op.drop_index(f"ix_joblib_task_{name}", _TASK)
    for name in ("tags", "root", "parent"):
        op.drop_column(_TASK, name)
