"""The operation that issues tokens of workers, and what these tokens grant."""

from fastapi import Request, Response

from zndraw_joblib.server.http.access import QueueState, verify_writable_room
from zndraw_joblib.server.http.identity import BearerTokens
from zndraw_joblib.server.http.routing import json_response, serves
from zndraw_joblib.server.process.ports import Identity
from zndraw_joblib.server.queue import rules_audit, rules_worker_tokens
from zndraw_joblib.wire import operations as ops
from zndraw_joblib.wire.messages import WorkerInfo
from zndraw_joblib.wire.problems import NoTokens
from zndraw_joblib.wire.worker_tokens import WorkerTokenRequest


def with_labels(caller: Identity, info: WorkerInfo | None) -> WorkerInfo | None:
    """Return what a worker says about itself, with the labels of its token."""
    if caller.worker is None or not caller.worker.labels:
        return info
    info = info or WorkerInfo()
    return info.model_copy(update={"labels": {**(info.labels or {}), **dict(caller.worker.labels)}})


@serves(ops.CREATE_WORKER_TOKEN)
async def create_worker_token(
    request: Request, queue: QueueState, caller: Identity, body: WorkerTokenRequest
) -> Response:
    """Issue a short-lived token of workers, for these jobs in these rooms. Operators of the rooms may do so.

    A repeated request issues another token. The text of the token is only in this response.
    """
    rules_worker_tokens.check(caller, body)
    for index, room_id in enumerate(body.rooms):
        body.rooms[index] = await queue.guards.resolve(request, verify_writable_room, room_id)
    if not isinstance(queue.identity, BearerTokens):
        raise NoTokens(
            "This queue is mounted in an app with its own users, so it has no tokens: let the app issue a "
            "credential whose identity is Identity(id, is_superuser=False, roles=['worker'], rooms=…, jobs=…)"
        )
    name = rules_worker_tokens.new_name()
    issue = rules_audit.recorded(rules_worker_tokens.issue, caller, "worker-token.issue", name)
    return json_response(await queue.runtime.write_short(issue, caller, name, body), 201)
