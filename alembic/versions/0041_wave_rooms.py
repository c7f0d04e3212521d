"""Ends for which tasks wait have their rooms, so that rooms take turns."""

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None

_WAVE, _INDEX = "joblib_wave", "ix_joblib_wave_room_id_n"


def upgrade() -> None:
    # A server of an earlier release adds ends without their rooms: these are the room ''.
    op.add_column(_WAVE, sa.Column("room_id", sa.String(128), server_default="", nullable=False))
    op.create_index(_INDEX, _WAVE, ["room_id", "n"])


def downgrade() -> None:
    op.drop_index(_INDEX, _WAVE)
    op.drop_column(_WAVE, "room_id")
