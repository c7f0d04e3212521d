"""Drop an index of webhooks that no statement reads."""

import sqlalchemy as sa
from alembic import op

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None

_WEBHOOK, _INDEX = "joblib_webhook", "ix_joblib_webhook_unnamed"


def upgrade() -> None:
    op.drop_index(_INDEX, _WEBHOOK)


def downgrade() -> None:
    where = sa.text("name IS NULL")
    op.create_index(_INDEX, _WEBHOOK, ["used_at"], sqlite_where=where, postgresql_where=where)
