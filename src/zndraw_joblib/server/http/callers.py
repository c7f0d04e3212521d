"""The caller of a request: identified before its body arrives, and again after a slow body."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable

from fastapi import Request

from zndraw_joblib.server.http.host_dependencies import fresh_copy
from zndraw_joblib.server.http.identity import Guard, verify_readable_room, verify_writable_room
from zndraw_joblib.server.http.state import queue_state
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.wire.operations import Access
from zndraw_joblib.wire.problems import Forbidden, Unauthorized

# The keys of the caller, of the time at which it was identified, of the room of the path after the host's
# guard has passed, and of this guard, in the request's scope.
CALLER = "zndraw_joblib.caller"
ROOM = "zndraw_joblib.room"
IDENTIFIED_AT = "zndraw_joblib.identified_at"
ROOM_GUARD = "zndraw_joblib.room_guard"
# A request that waits trusts the identity of its caller for this long. With the 3 s for which tokens are
# cached, a revoked one works for at most 5 s.
TRUSTED_SECONDS = 2.0
Check = Callable[[Request], Awaitable[object]]
Recheck = Check


async def current_identity(request: Request) -> Identity:
    """Return the caller. Raises `Unauthorized` without an identity: every endpoint needs one."""
    began = time.monotonic()
    identity = await queue_state(request).identify(request)
    if not isinstance(identity, Identity):
        raise Unauthorized("The request needs an identity", headers={"WWW-Authenticate": "Bearer"})
    request.scope[CALLER], request.scope[IDENTIFIED_AT] = identity, began
    return identity


async def current_superuser(request: Request) -> Identity:
    """Return the caller. Raises `Forbidden` unless it is a superuser."""
    identity = await current_identity(request)
    if not identity.is_superuser:
        raise Forbidden("Not authorized: only superusers may do this")
    return identity


def check_of(access: Access) -> Check:
    """Return the check of what an operation's access asks of each request.

    Then the scope has the caller and, if there is a guard for it, the room of the path.
    """
    identify = current_superuser if Access.SUPERUSER in access else current_identity
    if Access.ROOM_READ in access:
        guard = verify_readable_room
    elif Access.ROOM_WRITE in access:
        guard = verify_writable_room
    else:
        return identify

    async def check(request: Request) -> None:
        await identify(request)
        request.scope[ROOM] = await guarded_room(request, guard)

    return check


async def guarded_room(request: Request, guard: Guard) -> str:
    """Return the room of a request's path after the host's guard has passed."""
    request.scope[ROOM_GUARD] = guard
    return await queue_state(request).guards.room(request, guard)


def is_trusted(request: Request, checked_at: float) -> bool:
    """Return whether a check of the caller at a time, in monotonic seconds, is still valid."""
    changed_at = queue_state(request).worker_rooms.changed_at
    return time.monotonic() < checked_at + TRUSTED_SECONDS and changed_at < checked_at


async def check_again(request: Request, caller: Identity, recheck: Recheck | None = None) -> None:
    """Identify the caller again, and run `recheck` with a copy of the request."""
    copy = fresh_copy(request)
    if await current_identity(copy) != caller:
        raise Unauthorized("The caller's rights have changed: send the request again")
    if recheck is not None:
        await recheck(copy)


async def check_after_body(request: Request, recheck: Recheck | None = None) -> None:
    """Check the caller and the guard of the path's room again if the body took long to arrive.

    A slow body must not outlive the right to send it. `recheck` gets a copy of the request.
    """
    scope = request.scope
    checked_at = scope.get(IDENTIFIED_AT)
    if checked_at is None or is_trusted(request, checked_at):
        return

    async def check_room(copy: Request) -> None:
        if (guard := scope.get(ROOM_GUARD)) is not None:
            await guarded_room(copy, guard)
        if recheck is not None:
            await recheck(copy)

    began = time.monotonic()
    await check_again(request, scope[CALLER], check_room)
    scope[IDENTIFIED_AT] = began


async def body_of(request: Request, recheck: Recheck) -> AsyncIterator[bytes]:
    """Yield the chunks of an upload, and raise a refusal of the caller after the last one."""
    async for chunk in request.stream():
        yield chunk
    await check_after_body(request, recheck)
