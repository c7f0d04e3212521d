"""Add which user has opened a request to a provider."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_REQUEST = "joblib_provider_call"


def upgrade() -> None:
    op.add_column(_REQUEST, sa.Column("user_id", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table(_REQUEST) as table:
        table.drop_column("user_id")
