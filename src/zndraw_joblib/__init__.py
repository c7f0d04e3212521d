"""A job queue with an HTTP API for FastAPI. The public names are loaded on first use."""

from importlib import import_module
from typing import Any

_MODULES = {
    "contract.events": (
        "Emission",
        "Event",
        "JobsInvalidate",
        "JoinJobRoom",
        "JoinProviderRoom",
        "JoinRoom",
        "LeaveJobRoom",
        "LeaveProviderRoom",
        "LeaveRoom",
        "ProviderRequest",
        "ProviderResultReady",
        "ProvidersInvalidate",
        "TaskAvailable",
        "TaskStatusEvent",
    ),
    "contract.messages": (
        "HeartbeatRequest",
        "JobRegisterRequest",
        "JobResponse",
        "JobSummary",
        "NamedTask",
        "EmptyReason",
        "PaginatedResponse",
        "PlannedChange",
        "SweeperCycle",
        "SweeperMode",
        "SweeperPreview",
        "SweeperState",
        "SweeperUpdate",
        "TaskActionRequest",
        "TaskClaimRequest",
        "TaskClaimResponse",
        "TaskExplanation",
        "TaskHistory",
        "TaskResponse",
        "TaskSubmitRequest",
        "TaskUpdateRequest",
        "TaskVerdict",
        "Transition",
        "Verdict",
        "Reason",
        "WorkerResponse",
        "WorkerSummary",
    ),
    "contract.names": ("validate_room_id",),
    "contract.problems": (
        "Conflict",
        "FailedByOperator",
        "ContentTooLarge",
        "DispatchFailed",
        "Forbidden",
        "IdempotencyKeyReused",
        "InternalJobNotConfigured",
        "InternalServerError",
        "InternalTimeout",
        "InvalidCategory",
        "InvalidIdempotencyKey",
        "InvalidPayload",
        "InvalidRequest",
        "InvalidRoomId",
        "InvalidSchema",
        "InvalidTaskTransition",
        "JobNotFound",
        "Locked",
        "MethodNotAllowed",
        "NotFound",
        "Problem",
        "ProblemException",
        "ProviderFailed",
        "ProviderNotConnected",
        "ProviderNotFound",
        "ProviderTimeout",
        "Released",
        "RequestInProgress",
        "Retried",
        "RunTimeout",
        "SchemaConflict",
        "ServiceUnavailable",
        "StaleReport",
        "StaleResult",
        "StartTimeout",
        "TaskExpired",
        "TaskNotFound",
        "TooManyRequests",
        "Unauthorized",
        "WorkerLost",
        "WorkerNotFound",
    ),
    "contract.providers": (
        "ProviderClaimRequest",
        "ProviderClaimResponse",
        "ClaimedProviderRequest",
        "ProviderRegisterRequest",
        "ProviderResponse",
        "ProviderError",
    ),
    "contract.policy": ("Backoff", "RetryOn", "JobPolicy"),
    "contract.status": ("TaskStatus",),
    "contract.extensions": ("Category", "Extension", "GiveUp", "NonRetryable", "Provider"),
    "worker.api": ("ApiManager", "connect"),
    "worker.client": ("ProviderResult", "ReadResult"),
    "worker.folders": ("FileContent", "Folder", "FolderListing", "share_folder"),
    "worker.manager": ("ClaimedTask", "JobManager"),
    "server.realtime.publisher": ("emit",),
    "testing": ("check_result_backend",),
    "server.internal.executor": ("GuardedExecutor",),
    "server.internal.runs": ("InternalContext",),
    "server.http": ("router",),
    "server.http.dependencies": ("get_result_backend",),
    "server.http.guards": ("verify_readable_room", "verify_writable_room"),
    "server.problem_responses": ("problem_exception_handler",),
    "server.mount": ("JobLib", "register_internal_jobs", "register_socketio_handlers"),
    "server.ports": ("Identity", "ResultBackend", "StreamingBackend"),
    "server.internal.registration": ("register_internal_tasks",),
    "server.internal.registry": ("InternalExecutor", "InternalRegistry"),
    "server.settings": ("JobLibSettings",),
    "server.store.host_migrations": ("alembic_include_object",),
    "server.store.tables": ("Job", "ProviderRecord", "Task", "Worker", "WorkerJobLink"),
    "server.background.sweeper": (
        "cleanup_stale_workers",
        "cleanup_stuck_internal_tasks",
        "cleanup_worker",
        "run_sweeper",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted(_MODULE_OF)  # noqa: PLE0605 - derived, so that each name stands in one place


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
