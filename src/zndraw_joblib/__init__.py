"""A job queue with an HTTP API for FastAPI. The public names are loaded on first use."""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_MODULES = {
    "wire.events": (
        "Emission",
        "Event",
        "FrozenEvent",
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
        "TaskProgress",
        "TaskStatusEvent",
        "build_task_status_emission",
    ),
    "wire.messages": (
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
        "TaskResponse",
        "TaskSubmitRequest",
        "TaskUpdateRequest",
        "TaskVerdict",
        "Verdict",
        "WorkerResponse",
    ),
    "wire.schedules": ("ScheduleRequest", "ScheduleResponse", "ScheduleTimes"),
    "jobs.logs": ("LogFields",),
    "wire.names": ("validate_room_id",),
    "wire.operators": ("WorkerSummary",),
    "wire.problems": (
        "Conflict",
        "FailedByOperator",
        "ContentTooLarge",
        "DeliveryNotFound",
        "DispatchFailed",
        "DuplicateTask",
        "Forbidden",
        "GroupNotFound",
        "GroupSealed",
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
        "LimitNotFound",
        "Locked",
        "MethodNotAllowed",
        "NotFound",
        "NoTokens",
        "NoWorkersAvailable",
        "PredecessorFailed",
        "PredecessorResultInvalid",
        "Problem",
        "ProblemError",
        "ProblemException",
        "ProviderExecutionFailed",
        "ProviderFailed",
        "ProviderNotConnected",
        "ProviderNotFound",
        "ProviderTimeout",
        "ProviderTimeoutError",
        "Released",
        "RequestInProgress",
        "RangeNotSatisfiable",
        "RequestRefused",
        "ResultExpired",
        "ResultNotFound",
        "ResultNotSerializable",
        "ResultStoreFull",
        "Retried",
        "RunTimeout",
        "SchemaConflict",
        "ScheduleNotFound",
        "ServiceUnavailable",
        "StaleReport",
        "StaleResult",
        "StartTimeout",
        "TaskExpired",
        "TaskNotFound",
        "TooManyRequests",
        "Unauthorized",
        "UploadStalled",
        "WebhookNotFound",
        "WorkerLost",
        "WorkerNotFound",
    ),
    "jobs.codecs": ("NotSerializable", "register_codec"),
    "jobs.results": ("ResultFile",),
    "wire.providers": (
        "ProviderClaimRequest",
        "ProviderClaimResponse",
        "ClaimedProviderRequest",
        "ProviderRegisterRequest",
        "ProviderResponse",
        "ProviderError",
        "request_hash",
    ),
    "wire.history": ("Reason", "TaskExplanation", "TaskHistory", "Transition"),
    "wire.successors": ("After",),
    "jobs.outputs": ("Output",),
    "wire.unique": ("Debounce", "Unique"),
    "wire.webhooks": ("TaskWebhook", "new_webhook_secret"),
    "wire.policy": ("Backoff", "JobLimit", "JobPolicy", "Keep", "Rate", "RetryOn", "WithoutWorkers"),
    "wire.progress": ("LogLevel",),
    "wire.statuses": ("TaskStatus",),
    "jobs.task_context": ("TaskContext", "TaskLogHandler", "current_task"),
    "jobs.extensions": ("Category", "Extension", "GiveUp", "NonRetryable", "Provider", "Retry"),
    "jobs.batches": ("Batch", "BatchExtension"),
    "jobs.functions": ("JobFunction", "job"),
    "client.async_queue": ("AsyncTaskHandle", "AsyncQueue"),
    "client.watching": ("TaskEvent",),
    "client.flows": ("AmbiguousJob", "TaskCancelled", "TaskFailed"),
    "client.queue": ("TaskHandle", "Queue"),
    "client.connection": ("ApiManager", "ServerUnreachable", "connect"),
    "client.submits": ("NewTask",),
    "client.job_client": ("ProviderResult", "ReadResult"),
    "worker.folders": ("FileContent", "Folder", "FolderListing", "share_folder"),
    "worker.manager": ("ClaimedTask", "JobManager"),
    "worker.serving": ("JobWorker",),
    "cli.server.script": ("serve",),
    "server.realtime.publisher": ("emit",),
    "testing.result_backends": ("check_result_backend",),
    "server.internal.executor": ("GuardedExecutor",),
    "server.internal.runs": ("InternalContext",),
    "server.http": ("router",),
    "server.http.access": (
        "JobLibSettingsDep",
        "ResultBackendDep",
        "WorkerTokenDep",
        "WritableRoomDep",
        "get_joblib_settings",
        "get_result_backend",
        "get_tsio",
        "get_worker_token",
        "mint_internal_worker_token",
        "verify_readable_room",
        "verify_writable_room",
    ),
    "server.host.mount": (
        "FrameRoomCleanup",
        "FrameRoomCleanupDep",
        "get_frame_room_cleanup",
        "JobLib",
        "register_internal_jobs",
        "register_socketio_handlers",
    ),
    "server.runtime.problem_responses": ("problem_exception_handler",),
    "server.process.ports": ("Identity", "ResultBackend", "StreamingBackend"),
    "server.internal.providers": (
        "InternalProviderExecutor",
        "InternalProviderRegistry",
        "ensure_internal_providers",
        "register_internal_providers",
    ),
    "server.internal.registry": (
        "register_internal_tasks",
        "InternalExecutor",
        "InternalRegistry",
        "TokenRequest",
    ),
    "server.process.settings": ("JobLibSettings",),
    "server.db.schema": ("alembic_include_object",),
    "server.db.tables": ("Job", "ProviderRecord", "Task", "Worker", "WorkerJobLink"),
    "server.background.host_functions": (
        "cleanup_stale_workers",
        "cleanup_stuck_internal_tasks",
        "cleanup_worker",
        "run_sweeper",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

_WITH_OLD_COLUMNS = ("ProviderRecord", "Task", "Worker")

__all__ = sorted(_MODULE_OF)  # noqa: PLE0605 - derived, so that each name stands in one place


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_MODULE_OF[name]}")
        if name in _WITH_OLD_COLUMNS:
            import_module(f"{__name__}.compat_0_1.rows")
    except ModuleNotFoundError as error:
        if not _MODULE_OF[name].startswith(("server", "cli.server")):
            raise
        from zndraw_joblib.jobs.failures import missing_extra  # noqa: PLC0415 - only for an error

        text = missing_extra(f"{__name__}.{name}", "server", error)
        raise ModuleNotFoundError(text, name=error.name) from error
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return __all__


def old_name(module: str, name: str) -> Any:
    """Return what a module of version 0.1.x has under a name, for the current module that has its place."""
    from zndraw_joblib.compat_0_1 import names  # noqa: PLC0415 - only for an old name

    return names.get_old_name(module, name, stacklevel=3)


class _OldPaths:
    """Finds the import paths of version 0.1.x, such as `zndraw_joblib.models`, after all other finders."""

    def find_spec(self, full_name: str, *_: object) -> ModuleSpec | None:
        """Return the spec of an old module of this package, None for another name."""
        if full_name.rpartition(".")[0] != __name__:
            return None
        from zndraw_joblib.compat_0_1 import names  # noqa: PLC0415 - only for an old path

        return names.OldModules().find_spec(full_name)


sys.meta_path.append(_OldPaths())


class _Package(ModuleType):
    """This package. `import zndraw_joblib.router`, a module of version 0.1.x, does not hide `router`."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _MODULE_OF and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
