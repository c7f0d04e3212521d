"""Endpoints of providers, provider requests and provider results."""

from collections.abc import AsyncIterator
from functools import partial
from math import ceil
from typing import Annotated, NamedTuple
from uuid import UUID

from fastapi import Header, Request, Response

from zndraw_joblib.server.http.callers import body_of
from zndraw_joblib.server.http.dependencies import (
    Caller,
    CurrentRuntime,
    DisconnectWatcher,
    Key,
    NamedProvider,
    Paging,
    Queue,
    Results,
    Room,
    Wait,
    WantedWait,
    access_of,
    claim_id_of,
    json_response,
)
from zndraw_joblib.server.http.identity import verify_readable_room
from zndraw_joblib.server.http.requests import (
    BYTES_RETURNED,
    BYTES_SENT,
    Omissible,
    header_parameter,
    optional,
)
from zndraw_joblib.server.http.results import StoredBytes, content_response
from zndraw_joblib.server.http.routing import REQUIRED, Declared, Operations, Parameter, receive_body
from zndraw_joblib.server.providers.requests import CachedResult, request_key
from zndraw_joblib.server.queue import rules_providers
from zndraw_joblib.server.queue.rules_idempotency import NOTHING, Answers, answers_of, once
from zndraw_joblib.server.queue.rules_providers import find_for_upload
from zndraw_joblib.wire import operations as table
from zndraw_joblib.wire.messages import MAX_ERROR_BYTES
from zndraw_joblib.wire.problems import InvalidRequest
from zndraw_joblib.wire.providers import (
    REQUEST_HASH,
    RESULT_ERROR,
    RESULT_OK,
    RESULT_STATUS,
    WORKER_ID,
    ProviderClaimRequest,
    ProviderRegisterRequest,
    ProviderResponse,
    is_request_hash,
    params_of,
)

operations = Operations()

_REGISTERED: Answers[tuple[ProviderResponse, bool]] = answers_of(tuple[ProviderResponse, bool])
# JSON may escape one byte as six.
_MAX_ERROR_BODY_BYTES = 8 * MAX_ERROR_BYTES


@operations.serve(
    table.REGISTER_PROVIDER,
    responses={200: {"model": ProviderResponse, "description": "The provider existed already"}},
)
async def register_provider(
    runtime: CurrentRuntime, caller: Caller, room_id: Room, body: ProviderRegisterRequest, key: Key
) -> Response:
    """Register a worker as the provider of a data source; in ``@global`` only a superuser may do so.

    Providers of ``@internal`` are registered by the server's own code.
    """
    item = rules_providers.Registration(caller, room_id, body)
    rules_providers.check(item, runtime.settings.allowed_provider_categories)
    provider, is_new = await runtime.write(once(key, _REGISTERED, rules_providers.register), item=item)
    return json_response(provider, 201 if is_new else 200)


@operations.serve(table.LIST_PROVIDERS)
async def list_providers(runtime: CurrentRuntime, caller: Caller, room_id: Room, page: Paging) -> Response:
    """List the providers that are visible in a room: its own and those of ``@global`` and ``@internal``.

    With `filebrowser_require_superuser`, only superusers see the file systems of ``@internal``.
    """
    hides_files = runtime.settings.filebrowser_require_superuser and not caller.is_superuser
    return json_response(
        await runtime.database.read(rules_providers.page, room_id=room_id, part=page, hides_files=hides_files)
    )


@operations.serve(table.GET_PROVIDER)
async def get_provider(
    runtime: CurrentRuntime, caller: Caller, room_id: Room, name: NamedProvider
) -> Response:
    """Return a provider."""
    rules_providers.check_reader(
        caller, name, require_superuser=runtime.settings.filebrowser_require_superuser
    )
    cross_room = runtime.settings.cross_room_jobs
    return json_response(
        await runtime.database.read(rules_providers.get, room_id, name, cross_room=cross_room)
    )


@operations.serve(
    table.READ_PROVIDER,
    takes_any_query=True,
    responses={
        200: {
            "description": "The provider result, with the provider's content type",
            "content": {"application/json": {"schema": {}}, **BYTES_RETURNED},
        },
        304: {"description": "`If-None-Match` has the current ETag"},
    },
    response_class=Response,
    openapi_extra={"parameters": [header_parameter("If-None-Match", "The ETag that the client has.")]},
)
async def read_provider(  # noqa: PLR0913, PLR0917 - one argument per part of the request
    request: Request,
    queue: Queue,
    caller: Caller,
    results: Results,
    room_id: Room,
    name: NamedProvider,
    wait: WantedWait,
) -> Response:
    """Send a request to a provider. Its parameters are the query parameters, which may be repeated.

    With ``Prefer: wait=N``, wait N seconds for the result, else `provider_long_poll_default_seconds`.
    """
    settings = queue.runtime.settings
    rules_providers.check_reader(caller, name, require_superuser=settings.filebrowser_require_superuser)
    asked = request_key(room_id, name, params_of(request.query_params.multi_items()))
    found = await queue.provider_requests.find_cached(results, asked)
    headers: dict[str, str] = {}
    if found is None:
        seconds = settings.provider_long_poll_default_seconds
        if wait is not None:
            seconds = min(wait, settings.provider_long_poll_max_seconds)
            headers = {"Preference-Applied": f"wait={ceil(seconds)}"} if seconds else {}
        access = access_of(request, caller, partial(queue.guards.room, dependency=verify_readable_room))
        async with DisconnectWatcher(request) as watcher:
            requests, disconnected = queue.provider_requests, watcher.disconnected
            found = await requests.request(results, asked, seconds, disconnected, access)
    return await _respond(request, found, headers)


async def _respond(request: Request, found: CachedResult, headers: dict[str, str]) -> Response:
    async def read(_: int) -> AsyncIterator[bytes]:
        return found.chunks

    stored = StoredBytes(found.size, found.content_type, found.etag, read, headers=headers)
    return await content_response(request, stored)


@operations.serve(table.REMOVE_PROVIDER)
async def remove_provider(
    runtime: CurrentRuntime, caller: Caller, key: Key, provider_id: UUID, worker_id: Omissible[UUID] = None
) -> Response:
    """Remove a provider; with ``worker_id`` only that worker's registration."""
    await runtime.write(
        once(key, NOTHING, rules_providers.remove),
        caller=caller,
        provider_id=provider_id,
        worker_id=worker_id,
    )
    return Response(status_code=204)


@operations.serve(table.CLAIM_PROVIDER_REQUEST)
async def claim_provider_request(
    request: Request, queue: Queue, caller: Caller, body: ProviderClaimRequest, wait: Wait, key: Key
) -> Response:
    """Claim the oldest request of the worker's providers; with ``Prefer: wait=N``, wait for one."""
    claim_id = claim_id_of(body.claim_id, key)
    wait = min(wait, queue.runtime.settings.long_poll_max_wait_seconds)
    refused_rooms = partial(queue.worker_rooms.refused_providers, request, caller, body.worker_id)
    access = access_of(request, caller, refused_rooms=refused_rooms)
    claim = partial(queue.provider_requests.claim, caller, body.worker_id, claim_id=claim_id, access=access)
    if wait <= 0:
        return json_response(await claim())
    async with DisconnectWatcher(request) as watcher:
        got = await claim(wait, watcher.disconnected)
    return json_response(got, headers={"Preference-Applied": f"wait={ceil(wait)}"})


class _ResultHeaders(NamedTuple):
    """The headers of an uploaded provider result."""

    request_hash: str
    is_error: bool
    worker_id: UUID | None


def _read_result_headers(request: Request) -> _ResultHeaders:
    given = request.headers
    hashed, status, worker_id = (
        given.get(REQUEST_HASH),
        given.get(RESULT_STATUS, RESULT_OK),
        given.get(WORKER_ID),
    )
    if hashed is None or not is_request_hash(hashed):
        raise InvalidRequest(f"header.{REQUEST_HASH}: it must be the request_id of the provider request")
    if status not in {RESULT_OK, RESULT_ERROR}:
        raise InvalidRequest(f"header.{RESULT_STATUS}: it must be '{RESULT_OK}' or '{RESULT_ERROR}'")
    try:
        return _ResultHeaders(hashed, status == RESULT_ERROR, UUID(worker_id) if worker_id else None)
    except ValueError as error:
        raise InvalidRequest(f"header.{WORKER_ID}: it must be a UUID") from error


_RESULT_HEADERS: Declared = {
    "request_hash": (
        Annotated[str, Header(alias=REQUEST_HASH, description="The id of the provider request")],
        REQUIRED,
    ),
    "result_status": (Annotated[str, Header(alias=RESULT_STATUS, description="`ok` or `error`")], RESULT_OK),
    "worker_id": optional(UUID, Header(alias=WORKER_ID, description="The worker that uploads")),
}


@operations.serve(table.UPLOAD_PROVIDER_RESULT, openapi_extra={"requestBody": BYTES_SENT})
async def upload_provider_result(
    request: Request,
    queue: Queue,
    caller: Caller,
    results: Results,
    provider_id: UUID,
    headers: Annotated[_ResultHeaders, Parameter(_read_result_headers, _RESULT_HEADERS)],
) -> Response:
    """Upload the result of a provider request; with ``X-Result-Status: error``, its error.

    An error that is a problem (RFC 9457) is stored like a result: readers get it with its status. Other
    errors reach only the callers that wait, as `provider-execution-failed`.
    ``X-Request-Hash`` is the request's id. ``X-Worker-ID``, if given, must be the provider's worker.
    """
    provider = await queue.runtime.database.read_short(
        find_for_upload, caller, provider_id, headers.worker_id
    )

    async def check_room(request: Request) -> None:
        # The owner of an internal provider is a user of the host's own code.
        if provider.worker_id is not None:
            await queue.worker_rooms.check(request, caller, provider.name.room_id)

    await check_room(request)
    if headers.is_error:
        body = await receive_body(request, _MAX_ERROR_BODY_BYTES, check_room)
        await queue.uploads.upload_error(results, provider, headers.request_hash, body)
    else:
        announced = int(request.headers.get("content-length", 0))
        chunks = body_of(request, check_room)
        await queue.uploads.upload(results, provider, headers.request_hash, chunks, announced)
    return Response(status_code=204)
