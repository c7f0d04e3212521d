"""Providers: P1-P6 of the contract, and their reads for clients without Socket.IO."""

from functools import partial
from math import ceil
from typing import Annotated, NamedTuple
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Request, Response
from fastapi.responses import StreamingResponse

from zndraw_joblib.contract.messages import MAX_ERROR_BYTES, PaginatedResponse
from zndraw_joblib.contract.problems import InvalidRequest
from zndraw_joblib.contract.providers import (
    REQUEST_HASH,
    RESULT_ERROR,
    RESULT_OK,
    RESULT_STATUS,
    WORKER_ID,
    ProviderClaimRequest,
    ProviderClaimResponse,
    ProviderRegisterRequest,
    ProviderResponse,
    is_request_hash,
    params_of,
)
from zndraw_joblib.server.http.dependencies import (
    AskedWait,
    Caller,
    CurrentAnswers,
    CurrentReads,
    CurrentRuntime,
    DisconnectWatcher,
    NamedProvider,
    Paging,
    ReadableRoom,
    Results,
    Wait,
    WritableRoom,
    answer,
)
from zndraw_joblib.server.http.routing import RESOLVERS, Route, read_body
from zndraw_joblib.server.ports import PART_BYTES
from zndraw_joblib.server.providers.cache import CachedResult
from zndraw_joblib.server.providers.requests import request_key
from zndraw_joblib.server.service import providers
from zndraw_joblib.server.service.provider_requests import find_for_upload

router = APIRouter(route_class=Route)
# What a provider gives must not run in the name of whoever reads it with a browser.
_GUARDS = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"}
# JSON takes up to six bytes for one.
_MAX_FAILURE_BYTES = 8 * MAX_ERROR_BYTES


@router.put(
    "/rooms/{room_id}/providers",
    status_code=201,
    response_model=ProviderResponse,
    responses={200: {"model": ProviderResponse, "description": "The provider was there already"}},
)
async def register_provider(
    runtime: CurrentRuntime, caller: Caller, room_id: WritableRoom, body: ProviderRegisterRequest
) -> Response:
    """Register a worker as the one that answers the reads of a provider. In reserved rooms for superusers."""
    item = providers.Registration(caller, room_id, body)
    providers.check(item, runtime.settings.allowed_provider_categories)
    provider, is_new = await runtime.write(providers.register, item=item)
    return answer(provider, 201 if is_new else 200)


@router.get("/rooms/{room_id}/providers", response_model=PaginatedResponse[ProviderResponse])
async def list_providers(
    runtime: CurrentRuntime, caller: Caller, room_id: ReadableRoom, page: Paging
) -> Response:
    """List the providers that a room sees: its own and those of ``@global``."""
    return answer(await runtime.database.read(providers.page, room_id=room_id, part=page))


@router.get("/rooms/{room_id}/providers/{name:path}/info", response_model=ProviderResponse)
async def get_provider(
    runtime: CurrentRuntime, caller: Caller, room_id: ReadableRoom, name: NamedProvider
) -> Response:
    """Show a provider."""
    cross_room = runtime.settings.cross_room_jobs
    work = partial(providers.get, room_id=room_id, name=name, cross_room=cross_room)
    return answer(await runtime.database.read(work))


@router.get(
    "/rooms/{room_id}/providers/{name:path}",
    response_class=Response,
    responses={
        200: {"description": "What was read, of the provider's content type", "content": {"*/*": {}}},
        304: {"description": "`If-None-Match` has the current ETag"},
        502: {"description": "The provider could not read it"},
        503: {"description": "Nobody is connected for the provider"},
        504: {"description": "No answer yet; ask again"},
    },
)
async def read_provider(  # noqa: PLR0913, PLR0917 - all that a request brings
    request: Request,
    runtime: CurrentRuntime,
    reads: CurrentReads,
    caller: Caller,
    results: Results,
    room_id: ReadableRoom,
    name: NamedProvider,
    wait: AskedWait,
) -> Response:
    """Read from a provider. All parameters of the query are its own; one may be repeated.

    With ``Prefer: wait=N``, wait so long for the answer, else for some seconds.
    """
    asked = request_key(room_id, name, params_of(request.query_params.multi_items()))
    found = await reads.find_cached(results, asked)
    headers: dict[str, str] = {}
    if found is None:
        settings = runtime.settings
        seconds = settings.provider_long_poll_default_seconds
        if wait is not None:
            seconds = min(wait, settings.provider_long_poll_max_seconds)
            headers = {"Preference-Applied": f"wait={ceil(seconds)}"} if seconds else {}
        async with DisconnectWatcher(request) as watcher:
            found = await reads.request(results, asked, seconds, watcher.gone)
    return await _respond(request, found, headers)


async def _respond(request: Request, found: CachedResult, headers: dict[str, str]) -> Response:
    headers |= {**_GUARDS, "Cache-Control": "private, no-cache"}
    if found.etag is not None:
        headers["ETag"] = f'"{found.etag}"'
        known = [
            tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")
        ]
        if headers["ETag"] in known or "*" in known:
            return Response(status_code=304, headers=headers)
    if found.size <= PART_BYTES:
        content = b"".join([chunk async for chunk in found.chunks])
        response = Response(content, headers=headers)
    else:
        response = StreamingResponse(found.chunks, headers={**headers, "Content-Length": str(found.size)})
    # As it was registered: Starlette would add a charset to a text.
    response.headers["Content-Type"] = found.content_type
    return response


@router.delete("/providers/{provider_id}", status_code=204)
async def remove_provider(
    runtime: CurrentRuntime, caller: Caller, provider_id: UUID, worker_id: UUID | None = None
) -> Response:
    """Remove a provider, or with ``worker_id`` only the registration of that worker."""
    leave = partial(providers.remove, caller=caller, provider_id=provider_id, worker_id=worker_id)
    await runtime.write(leave)
    return Response(status_code=204)


@router.post("/providers/requests/claim", response_model=ProviderClaimResponse)
async def claim_read(
    request: Request,
    runtime: CurrentRuntime,
    reads: CurrentReads,
    caller: Caller,
    body: ProviderClaimRequest,
    wait: Wait,
) -> Response:
    """Get the oldest read that waits for the worker's providers; with ``Prefer: wait=N``, wait for one."""
    wait = min(wait, runtime.settings.long_poll_max_wait_seconds)
    if wait <= 0:
        return answer(await reads.claim(caller, body.worker_id, claim_id=body.claim_id))
    async with DisconnectWatcher(request) as watcher:
        got = await reads.claim(caller, body.worker_id, wait, watcher.gone, body.claim_id)
    return answer(got, headers={"Preference-Applied": f"wait={ceil(wait)}"})


class _Label(NamedTuple):
    """What the headers say of a result."""

    request_hash: str
    is_error: bool
    worker_id: UUID | None


async def _label(
    request_hash: Annotated[str, Header(alias=REQUEST_HASH, description="Which read it answers")],
    result_status: Annotated[str, Header(alias=RESULT_STATUS, description="`ok` or `error`")] = RESULT_OK,
    worker_id: Annotated[UUID | None, Header(alias=WORKER_ID, description="Which worker has read it")] = None,
) -> None:
    """Declare the headers; `RESOLVERS` has what they do."""


def _label_of(request: Request) -> _Label:
    given = request.headers
    hashed, status, worker_id = (
        given.get(REQUEST_HASH),
        given.get(RESULT_STATUS, RESULT_OK),
        given.get(WORKER_ID),
    )
    if hashed is None or not is_request_hash(hashed):
        raise InvalidRequest(f"header.{REQUEST_HASH}: it must be the request_id of the read that is answered")
    if status not in {RESULT_OK, RESULT_ERROR}:
        raise InvalidRequest(f"header.{RESULT_STATUS}: it must be '{RESULT_OK}' or '{RESULT_ERROR}'")
    try:
        return _Label(hashed, status == RESULT_ERROR, UUID(worker_id) if worker_id else None)
    except ValueError as error:
        raise InvalidRequest(f"header.{WORKER_ID}: it must be a UUID") from error


RESOLVERS[_label] = _label_of


@router.post("/providers/{provider_id}/results", status_code=204)
async def bring_result(  # noqa: PLR0913, PLR0917 - all that a request brings
    request: Request,
    runtime: CurrentRuntime,
    answers: CurrentAnswers,
    caller: Caller,
    results: Results,
    provider_id: UUID,
    label: Annotated[_Label, Depends(_label)],
) -> Response:
    """Bring the answer to a read, as it is; or, with ``X-Result-Status: error``, what went wrong.

    The header ``X-Request-Hash`` tells which read; ``X-Worker-ID``, if given, must be the provider's worker.
    """
    find = partial(find_for_upload, caller=caller, provider_id=provider_id, worker_id=label.worker_id)
    target = await runtime.database.read_short(find)
    if label.is_error:
        body = await read_body(request, _MAX_FAILURE_BYTES)
        await answers.upload_error(results, target, label.request_hash, body)
    else:
        content_length = int(request.headers.get("content-length", 0))
        await answers.upload(results, target, label.request_hash, request.stream(), content_length)
    return Response(status_code=204)
