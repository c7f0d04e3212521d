"""Add the paths to the secret values of their payloads to schedules and groups."""

import json

import sqlalchemy as sa
from alembic import op

from zndraw_joblib.wire.masks import joined_paths

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None

_TABLES = ("joblib_schedule", "joblib_group")
_MASKS = sa.text("SELECT full_name, masked FROM joblib_job WHERE masked IS NOT NULL")
_SET_OF_SCHEDULES = sa.text("UPDATE joblib_schedule SET masked = :masked WHERE job_name = :full_name")
_ON_ENDS = sa.text(
    "SELECT n, on_end FROM joblib_group WHERE on_end IS NOT NULL AND n > :n ORDER BY n LIMIT 1000"
)
_SET_OF_GROUP = sa.text("UPDATE joblib_group SET masked = :masked WHERE n = :n")


def upgrade() -> None:
    for table in _TABLES:
        op.add_column(table, sa.Column("masked", sa.Text(), nullable=True))
    connection = op.get_bind()
    masks: dict[str, str | None] = {}
    for full_name, masked in connection.execute(_MASKS):
        masks[full_name] = joined_paths([masks.get(full_name), masked])
    for full_name, masked in masks.items():
        connection.execute(_SET_OF_SCHEDULES, {"full_name": full_name, "masked": masked})
    last = 0
    while masks and (rows := connection.execute(_ON_ENDS, {"n": last}).all()):
        for last, on_end in rows:
            if (masked := masks.get(json.loads(on_end)["job"])) is not None:
                connection.execute(_SET_OF_GROUP, {"n": last, "masked": masked})


def downgrade() -> None:
    for table in _TABLES:
        op.drop_column(table, "masked")
