"""The host's users, by fastapi-users: sign up, and log in with a cookie or a bearer token."""

import uuid
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi_users import BaseUserManager, FastAPIUsers, UUIDIDMixin, schemas
from fastapi_users.authentication import AuthenticationBackend, BearerTransport, CookieTransport, JWTStrategy
from fastapi_users.db import BaseUserDatabase
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from examples.host.database import Session
from examples.host.models import User


class UserDatabase(BaseUserDatabase[User, uuid.UUID]):
    """Users in the host's database. The package fastapi-users-db-sqlalchemy needs SQLAlchemy before 2.1."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def get(self, id: uuid.UUID) -> User | None:
        """Return a user."""
        return await self._session.get(User, id)

    async def get_by_email(self, email: str) -> User | None:
        """Return a user; the case of the address does not matter."""
        found = await self._session.scalars(select(User).where(func.lower(User.email) == email.lower()))
        return found.first()

    async def create(self, create_dict: dict[str, Any]) -> User:
        """Add a user. The first one is a superuser."""
        is_first = (await self._session.scalars(select(User.id).limit(1))).first() is None
        user = User(**{**create_dict, "is_superuser": is_first})
        self._session.add(user)
        await self._session.commit()
        await self._session.refresh(user)
        return user

    async def update(self, user: User, update_dict: dict[str, Any]) -> User:
        """Change a user."""
        for name, value in update_dict.items():
            setattr(user, name, value)
        await self._session.commit()
        await self._session.refresh(user)
        return user


class UserManager(UUIDIDMixin, BaseUserManager[User, uuid.UUID]):
    """The host's rules for users: the defaults."""


class UserRead(schemas.BaseUser[uuid.UUID]):
    """A user as the API shows it."""


class UserCreate(schemas.BaseUserCreate):
    """The body of a request that signs up."""


async def user_manager(session: Session) -> AsyncIterator[UserManager]:
    """Return the manager of the request's session."""
    yield UserManager(UserDatabase(session))


def strategy(request: Request) -> "JWTStrategy[User, uuid.UUID]":
    """Return how tokens are signed: with the app's secret, for a day."""
    return JWTStrategy(secret=request.app.state.secret, lifetime_seconds=86_400)


bearer = AuthenticationBackend("bearer", BearerTransport("auth/login"), strategy)
cookie = AuthenticationBackend("cookie", CookieTransport(cookie_name="session"), strategy)
users = FastAPIUsers[User, uuid.UUID](user_manager, [bearer, cookie])
# The queue's `identity`: its errors are 401 responses.
current_user = users.current_user(active=True)
CurrentUser = Annotated[User, Depends(current_user)]
