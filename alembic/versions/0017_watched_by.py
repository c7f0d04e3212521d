"""Add for which user a room is watched."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_STREAM = "joblib_room_stream"


def upgrade() -> None:
    op.add_column(_STREAM, sa.Column("watched_by", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table(_STREAM) as table:
        table.drop_column("watched_by")
