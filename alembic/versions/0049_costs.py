"""Add to queues how many slots of its worker a task takes."""

import sqlalchemy as sa
from alembic import op

revision = "0049"
down_revision = "0048"
branch_labels = None
depends_on = None

_TABLE = "joblib_job"
# Queues whose tasks have a cost of their own: earlier releases would take it for a label.
_OWN = sa.text(f"SELECT count(*) FROM {_TABLE} WHERE requires LIKE '{{\"@cost\"%'")  # noqa: S608


def upgrade() -> None:
    op.add_column(_TABLE, sa.Column("cost", sa.Integer(), nullable=True))


def downgrade() -> None:
    if op.get_bind().execute(_OWN).scalar_one():
        raise RuntimeError(
            "Tasks were submitted with costs of their own, which earlier releases do not know: restore a backup"
        )
    op.drop_column(_TABLE, "cost")
