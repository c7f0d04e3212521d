"""Add the roles, rooms and jobs of tokens, when they expire, and when they were last used."""

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None

_TABLE = "joblib_token"
_LISTS, _TIMES = ("roles", "rooms", "jobs"), ("expires_at", "last_used_at")


def upgrade() -> None:
    for name in _LISTS:
        op.add_column(_TABLE, sa.Column(name, sa.Text(), nullable=True))
    for name in _TIMES:
        op.add_column(_TABLE, sa.Column(name, sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    # A token with rooms or an end would have more rights without them.
    tokens = sa.table(_TABLE, *[sa.column(name) for name in (*_LISTS, *_TIMES)])
    narrow = sa.or_(*[tokens.c[name].is_not(None) for name in (*_LISTS, "expires_at")])
    op.execute(sa.delete(tokens).where(narrow))
    for name in (*_TIMES, *_LISTS):
        op.drop_column(_TABLE, name)
