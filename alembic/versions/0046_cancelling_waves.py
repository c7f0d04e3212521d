"""Index the ends that cancel what waits for them: an older end of the same task cancels it too."""

import sqlalchemy as sa
from alembic import op

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None

_WAVE, _INDEX = "joblib_wave", "ix_joblib_wave_cancels"


def upgrade() -> None:
    where = sa.text("cancels")
    op.create_index(_INDEX, _WAVE, ["source"], sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    op.drop_index(_INDEX, _WAVE)
