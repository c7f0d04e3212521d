"""The host's own tables; the queue's tables are in the same database."""

import uuid

from sqlalchemy import ForeignKey
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """All tables of the host."""


class User(Base):
    """A user of fastapi-users. The queue reads only `id` and `is_superuser`."""

    __tablename__ = "user"

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    email: Mapped[str] = mapped_column(unique=True, index=True)
    hashed_password: Mapped[str]
    is_active: Mapped[bool] = mapped_column(default=True)
    is_superuser: Mapped[bool] = mapped_column(default=False)
    is_verified: Mapped[bool] = mapped_column(default=False)


class Simulation(Base):
    """A simulation that a user has started, and its energy once the queue has computed it."""

    __tablename__ = "simulation"

    id: Mapped[int] = mapped_column(primary_key=True)
    owner_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("user.id"))
    steps: Mapped[int]
    task_id: Mapped[str | None]
    energy: Mapped[float | None]
    error: Mapped[str | None]
