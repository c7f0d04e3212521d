"""Add the paths to the secret values of payloads to the versions of jobs."""

import json

import sqlalchemy as sa
from alembic import op

from zndraw_joblib.wire.masks import masked_paths

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None

_TABLE = "joblib_job"


def upgrade() -> None:
    op.add_column(_TABLE, sa.Column("masked", sa.Text(), nullable=True))
    connection = op.get_bind()
    ids = [row[0] for row in connection.execute(sa.text(f"SELECT id FROM {_TABLE} ORDER BY id"))]  # noqa: S608
    read = sa.text(f"SELECT schema FROM {_TABLE} WHERE id = :id")  # noqa: S608
    write = sa.text(f"UPDATE {_TABLE} SET masked = :masked WHERE id = :id")  # noqa: S608
    for job_id in ids:
        schema = connection.execute(read, {"id": job_id}).scalar_one()
        masked = masked_paths(json.loads(schema) if isinstance(schema, str) else schema)
        if masked is not None:
            connection.execute(write, {"id": job_id, "masked": masked})


def downgrade() -> None:
    op.drop_column(_TABLE, "masked")
