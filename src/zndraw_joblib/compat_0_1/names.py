"""The public names of version 0.1.x, by module: where each is now, and what to use instead."""

import warnings
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple


class OldName(NamedTuple):
    """A name of version 0.1.x. `target` is ``module:name`` of its value; `instead` is the text for users."""

    target: str
    instead: str


# Names that are also public names of the package now.
_PUBLIC = {
    "client": ("ApiManager", "Category", "ClaimedTask", "Extension"),
    "dependencies": (
        *("FrameRoomCleanup", "FrameRoomCleanupDep", "JobLibSettingsDep", "ResultBackend"),
        *("ResultBackendDep", "WritableRoomDep", "get_frame_room_cleanup", "get_joblib_settings"),
        *("get_result_backend", "get_tsio", "request_hash", "validate_room_id", "verify_writable_room"),
    ),
    "events": (
        *("Emission", "JobsInvalidate", "JoinJobRoom", "JoinProviderRoom", "LeaveJobRoom"),
        *("LeaveProviderRoom", "ProviderResultReady", "ProvidersInvalidate", "emit"),
    ),
    "exceptions": (
        *("Forbidden", "InternalJobNotConfigured", "InvalidCategory", "InvalidRoomId"),
        *("InvalidTaskTransition", "JobNotFound", "ProblemException", "ProviderNotFound", "ProviderTimeout"),
        *("SchemaConflict", "TaskNotFound", "WorkerNotFound", "problem_exception_handler"),
    ),
    "models": ("Job", "TaskStatus", "WorkerJobLink"),
    "provider": ("Provider",),
    "registry": ("InternalExecutor", "InternalRegistry", "register_internal_jobs", "register_internal_tasks"),
    "router": ("router",),
    "schemas": (
        *("JobRegisterRequest", "JobResponse", "JobSummary", "PaginatedResponse", "ProviderRegisterRequest"),
        *("ProviderResponse", "TaskClaimRequest", "TaskClaimResponse", "TaskSubmitRequest"),
        *("TaskUpdateRequest", "WorkerResponse", "WorkerSummary"),
    ),
    "settings": ("JobLibSettings", "JobLibSettingsDep"),
    "sweeper": ("run_sweeper",),
}
# Names that have another name now.
_RENAMED = {"events": {"FrozenEvent": "Event"}, "exceptions": {"ProviderTimeoutError": "ProviderTimeout"}}
_STATUSES = {
    "TERMINAL_STATUSES": ("messages", "TaskStatus.COMPLETED, FAILED and CANCELLED"),
    "VALID_TRANSITIONS": ("messages", "the problem InvalidTaskTransition of a report"),
}
_WITH_TEXT_IDS = "with UUIDs as ids"
# Names whose value is in this package: its module, and what to use instead.
_HERE: dict[str, dict[str, tuple[str, str]]] = {
    "client": {"JobManager": ("manager", "zndraw_joblib.JobManager")},
    "dependencies": {"parse_prefer_wait": ("functions", "the header Prefer of the request")},
    "events": {
        "build_task_status_emission": (
            "messages",
            f"zndraw_joblib.build_task_status_emission {_WITH_TEXT_IDS}",
        ),
        **{
            name: ("messages", f"zndraw_joblib.{name} {_WITH_TEXT_IDS}")
            for name in ("ProviderRequest", "TaskAvailable", "TaskStatusEvent")
        },
    },
    "models": {
        **_STATUSES,
        **{name: ("rows", f"zndraw_joblib.{name}") for name in ("ProviderRecord", "Task", "Worker")},
    },
    "registry": {"ensure_internal_jobs": ("functions", "zndraw_joblib.register_internal_jobs")},
    "router": {**_STATUSES, "parse_prefer_wait": ("functions", "the header Prefer of the request")},
    "sweeper": {
        name: ("functions", f"zndraw_joblib.{name}")
        for name in ("cleanup_stale_workers", "cleanup_stuck_internal_tasks", "cleanup_worker")
    },
    "schemas": {"TaskResponse": ("messages", f"zndraw_joblib.TaskResponse {_WITH_TEXT_IDS}")},
}


def _names_of(module: str) -> dict[str, OldName]:
    own = {
        name: OldName(f"zndraw_joblib.compat_0_1.{where}:{name}", instead)
        for name, (where, instead) in _HERE.get(module, {}).items()
    }
    public = {name: name for name in _PUBLIC.get(module, ())} | _RENAMED.get(module, {})
    moved = {old: OldName(f"zndraw_joblib:{new}", f"zndraw_joblib.{new}") for old, new in public.items()}
    return dict(sorted({**own, **moved}.items()))


NAMES = {module: _names_of(module) for module in sorted({*_PUBLIC, *_HERE, *_RENAMED})}


# A current package, which asks for the old names that it does not have.
_CURRENT = "client"


def get_old_name(module: str, name: str, stacklevel: int = 2) -> Any:
    """Return the value of a name of an old module, and warn at the line that reads it."""
    old = NAMES[module].get(name)
    if old is None:
        raise AttributeError(f"module 'zndraw_joblib.{module}' has no attribute {name!r}")
    warnings.warn(
        f"zndraw_joblib.{module}.{name} is a name of version 0.1; use {old.instead} "
        "(docs/how-to/migrate-from-0.1.md)",
        DeprecationWarning,
        stacklevel=stacklevel + 1,
    )
    target, _, attribute = old.target.partition(":")
    return getattr(import_module(target), attribute)


class OldModules(Loader):
    """Loads the import paths of version 0.1.x, such as `zndraw_joblib.models`: modules of old names alone."""

    def find_spec(self, full_name: str) -> ModuleSpec | None:
        """Return the spec of an old module, None for another name."""
        module = full_name.rpartition(".")[2]
        return ModuleSpec(full_name, self) if module in NAMES and module != _CURRENT else None

    def exec_module(self, module: ModuleType) -> None:
        """Add the names, each of which is looked up, and warns, where it is used."""
        old = module.__name__.rpartition(".")[2]
        names = list(NAMES[old])
        module.__doc__ = f"The module `{old}` of version 0.1.x. See `docs/how-to/migrate-from-0.1.md`."
        vars(module).update(
            __all__=names, __getattr__=lambda name: get_old_name(old, name), __dir__=lambda: names
        )
