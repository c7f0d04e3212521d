"""Convert the value of a host's identity dependency to an `Identity`, and check its declared type."""

import inspect
import logging
import types
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from dataclasses import is_dataclass
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from fastapi import Depends
from pydantic import BaseModel

from zndraw_joblib.contract.problems import InternalServerError
from zndraw_joblib.server.ports import Identity

logger = logging.getLogger(__name__)
_REMEDY = (
    "The queue reads `id` and `is_superuser` of each caller. Add the attribute, or return "
    "zndraw_joblib.Identity(id, is_superuser) from the dependency `identity` of JobLib"
)
_WRAPPERS = frozenset({AsyncGenerator, AsyncIterator, Generator, Iterator})
_UNIONS = frozenset({Union, types.UnionType})


def identity_dependency(identity: Callable[..., Any]) -> Callable[..., Any]:
    """Return a dependency whose value is the `Identity` of the host's user, None without one."""

    # The attributes are read while the host's session is open: the user may be an ORM object.
    async def resolve(user: Annotated[Any, Depends(identity)]) -> Identity | None:
        return None if user is None else _identity(user)

    return resolve


def _identity(user: Any) -> Identity:
    try:
        if user.id is not None:
            return Identity(str(user.id), is_superuser(user))
        fault = "its id is None"
    except NotABoolean as error:
        fault = str(error)
    except AttributeError as error:
        if error.obj is not user:
            raise  # inside a property of the host
        fault = f"{type(user).__name__} has no attribute {error.name!r}"
    logger.error("The host's identity is wrong: %s. %s", fault, _REMEDY)
    raise InternalServerError(f"The host's identity is wrong: {fault}. {_REMEDY}")


class NotABoolean(TypeError):
    """The attribute `is_superuser` of a host's user is no boolean."""


def is_superuser(user: Any) -> bool:
    """Return whether a host's user is a superuser: only True and False count, and None is False.

    Raises `NotABoolean` for all else: a method, or a text, is true and would make each user a superuser.
    """
    value = user.is_superuser
    if isinstance(value, bool | None):
        return value is True
    shown = f"a method (use a property: without @property, {type(user).__name__}.is_superuser is always true)"
    raise NotABoolean(
        f"is_superuser of {type(user).__name__} is {shown if callable(value) else f'{value!r:.100}'}, "
        "neither True nor False"
    )


def check_identity_type(identity: Callable[..., Any]) -> None:
    """Raise TypeError if the declared type of a host's identity lacks an attribute that the queue reads."""
    dependency = getattr(identity, "__qualname__", identity)
    for kind in _returned_types(identity):
        for name in ("id", "is_superuser"):
            if _certainly_lacks(kind, name):
                fault = f"{kind.__name__}, which has no attribute {name!r}"
                raise TypeError(f"The identity {dependency!r} returns {fault}. {_REMEDY}")
        if inspect.isroutine(inspect.getattr_static(kind, "is_superuser", None)):
            raise TypeError(
                f"The identity {dependency!r} returns {kind.__name__}, whose is_superuser is a method, which "
                f"is always true. Make it a property. {_REMEDY}"
            )


def _returned_types(identity: Callable[..., Any]) -> list[type]:
    if isinstance(identity, type):
        return [identity]
    function = identity if inspect.isroutine(identity) else type(identity).__call__
    try:
        declared = get_type_hints(function).get("return")
    except Exception:
        return []  # a name that is imported for type checkers only
    while get_origin(declared) in _WRAPPERS:
        declared = get_args(declared)[0]
    members = get_args(declared) if get_origin(declared) in _UNIONS else (declared,)
    kinds = [get_origin(member) or member for member in members]
    return [kind for kind in kinds if isinstance(kind, type) and kind is not types.NoneType]


def _certainly_lacks(kind: type, name: str) -> bool:
    """Return whether no instance can have an attribute: the class declares all that its instances have."""
    if hasattr(kind, name) or any(name in vars(base).get("__annotations__", ()) for base in kind.__mro__):
        return False
    if issubclass(kind, BaseModel):
        return kind.model_config.get("extra") != "allow"
    is_table = hasattr(kind, "__mapper__")
    is_plain = (kind.__module__ == "builtins" and kind is not object) or hasattr(kind, "_fields")
    return (is_table or is_plain or is_dataclass(kind)) and not hasattr(kind, "__getattr__")
