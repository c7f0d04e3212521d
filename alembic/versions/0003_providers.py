"""Create the tables of providers, their open requests and their results."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "joblib_provider",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("room_id", sa.String(length=128), nullable=False),
        sa.Column("category", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("schema", sa.Text(), nullable=False),
        sa.Column("content_type", sa.String(length=255), nullable=False),
        sa.Column("owner_id", sa.String(), nullable=False),
        sa.Column("worker_id", sa.Uuid(), nullable=False),
        sa.Column("registration", sa.Uuid(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("heard_until", _TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["joblib_worker.id"], name=op.f("fk_joblib_provider_worker_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_joblib_provider")),
        sa.UniqueConstraint(
            "room_id", "category", "name", name=op.f("uq_joblib_provider_room_id_category_name")
        ),
    )
    op.create_index("ix_joblib_provider_worker_id", "joblib_provider", ["worker_id"])
    op.create_table(
        "joblib_provider_worker",
        sa.Column("n", _SEQUENCE, autoincrement=True, nullable=False),
        sa.Column("provider_id", sa.Uuid(), nullable=False),
        sa.Column("worker_id", sa.Uuid(), nullable=False),
        sa.Column("schema", sa.Text(), nullable=False),
        sa.Column("content_type", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(
            ["provider_id"], ["joblib_provider.id"], name=op.f("fk_joblib_provider_worker_provider_id")
        ),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["joblib_worker.id"], name=op.f("fk_joblib_provider_worker_worker_id")
        ),
        sa.PrimaryKeyConstraint("n", name=op.f("pk_joblib_provider_worker")),
    )
    op.create_index("ix_joblib_provider_worker_provider_id", "joblib_provider_worker", ["provider_id"])
    op.create_index("ix_joblib_provider_worker_worker_id", "joblib_provider_worker", ["worker_id"])
    op.create_table(
        "joblib_provider_call",
        sa.Column("n", _SEQUENCE, autoincrement=True, nullable=False),
        sa.Column("provider_id", sa.Uuid(), nullable=False),
        sa.Column("request_hash", sa.String(length=128), nullable=False),
        sa.Column("params", sa.Text(), nullable=False),
        sa.Column("registration", sa.Uuid(), nullable=False),
        sa.Column("sent_at", _TIME, nullable=False),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.Column("claimed_by", sa.Uuid(), nullable=True),
        sa.Column("claimed_at", _TIME, nullable=True),
        sa.Column("claim_id", sa.Uuid(), nullable=True),
        sa.ForeignKeyConstraint(
            ["provider_id"], ["joblib_provider.id"], name=op.f("fk_joblib_provider_call_provider_id")
        ),
        sa.PrimaryKeyConstraint("n", name=op.f("pk_joblib_provider_call")),
        sa.UniqueConstraint(
            "provider_id", "request_hash", name=op.f("uq_joblib_provider_call_provider_id_request_hash")
        ),
    )
    op.create_index("ix_joblib_provider_call_expires_at", "joblib_provider_call", ["expires_at"])
    op.create_table(
        "joblib_result",
        sa.Column("n", _SEQUENCE, autoincrement=True, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=True),
        sa.Column("expires_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("n", name=op.f("pk_joblib_result")),
        sa.UniqueConstraint("key", name=op.f("uq_joblib_result_key")),
    )
    op.create_index("ix_joblib_result_expires_at", "joblib_result", ["expires_at"])
    op.create_table(
        "joblib_result_part",
        sa.Column("result_n", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("result_n", "part", name=op.f("pk_joblib_result_part")),
    )


def downgrade() -> None:
    for table in ("result_part", "result", "provider_call", "provider_worker", "provider"):
        op.drop_table(f"joblib_{table}")
