"""The public names of the package: complete, each defined in one module, and none added by accident."""

import importlib
import inspect
import subprocess
import sys

import pytest

import zndraw_joblib
from zndraw_joblib import client
from zndraw_joblib.wire import events, problems

# A public name is a promise to users, so each added or removed name must be changed here too.
NAMES = """
AmbiguousJob ApiManager AsyncQueue AsyncTaskHandle
Backoff Batch BatchExtension Category ClaimedProviderRequest ClaimedTask Conflict ContentTooLarge
DispatchFailed Emission EmptyReason Event Extension FailedByOperator FileContent Folder
FolderListing Forbidden GiveUp GroupNotFound GroupSealed GuardedExecutor HeartbeatRequest IdempotencyKeyReused
Identity
InternalProviderExecutor InternalProviderRegistry NoWorkersAvailable ProblemError ProviderExecutionFailed
WorkerTokenDep ensure_internal_providers get_worker_token mint_internal_worker_token
register_internal_providers
InternalContext InvalidIdempotencyKey RequestInProgress RequestRefused
InternalExecutor InternalJobNotConfigured InternalRegistry InternalServerError InternalTimeout
InvalidCategory InvalidPayload InvalidRequest InvalidRoomId InvalidSchema InvalidTaskTransition
Job JobFunction JobLib JobLibSettings JobManager JobNotFound JobPolicy JobRegisterRequest JobResponse
JobSummary JobWorker JobsInvalidate JoinJobRoom JoinProviderRoom JoinRoom LeaveJobRoom LeaveProviderRoom
LeaveRoom Locked MethodNotAllowed NamedTask NewTask NonRetryable NotFound PaginatedResponse
PlannedChange PredecessorFailed PredecessorResultInvalid Problem ProblemException Provider
Queue ServerUnreachable TaskCancelled TaskEvent TaskFailed TaskHandle
ProviderClaimRequest ProviderClaimResponse
ProviderError ProviderFailed ProviderNotConnected ProviderNotFound ProviderRecord
ProviderRegisterRequest ProviderRequest ProviderResponse ProviderResult ProviderResultReady
ProviderTimeout ProvidersInvalidate ReadResult Reason Released ResultBackend Retried Retry RetryOn
LogFields LogLevel RunTimeout ScheduleNotFound ScheduleRequest ScheduleResponse ScheduleTimes
SchemaConflict ServiceUnavailable StaleReport StaleResult StartTimeout
StreamingBackend SweeperCycle SweeperMode SweeperPreview SweeperState SweeperUpdate Task
TaskActionRequest TaskAvailable TaskClaimRequest TaskClaimResponse TaskExpired TaskExplanation
TaskContext TaskHistory TaskLogHandler TaskNotFound TaskProgress TaskResponse TaskStatus
TaskStatusEvent TaskSubmitRequest
TaskUpdateRequest TaskVerdict TooManyRequests Transition Unauthorized UploadStalled Verdict Worker
NotSerializable RangeNotSatisfiable ResultExpired ResultFile ResultNotFound ResultNotSerializable
ResultStoreFull register_codec NoTokens TokenRequest
WithoutWorkers WorkerJobLink WorkerLost WorkerNotFound WorkerResponse WorkerSummary alembic_include_object
check_result_backend Debounce DeliveryNotFound DuplicateTask JobLimit Keep LimitNotFound Rate TaskWebhook
Unique WebhookNotFound new_webhook_secret After Output
cleanup_stale_workers cleanup_stuck_internal_tasks cleanup_worker connect current_task emit
get_result_backend job problem_exception_handler register_internal_jobs register_internal_tasks
register_socketio_handlers router run_sweeper serve share_folder validate_room_id verify_readable_room
verify_writable_room
FrameRoomCleanup FrameRoomCleanupDep FrozenEvent JobLibSettingsDep ProviderTimeoutError ResultBackendDep
WritableRoomDep build_task_status_emission get_frame_room_cleanup get_joblib_settings get_tsio request_hash
"""
PUBLIC = set(NAMES.split())

# All public names of version 0.1.7.
NAMES_OF_0_1_7 = """
Category ClaimedTask Emission Extension Forbidden FrameRoomCleanup FrameRoomCleanupDep FrozenEvent
InternalExecutor InternalJobNotConfigured InternalRegistry InvalidCategory InvalidRoomId
InvalidTaskTransition Job JobLibSettings JobLibSettingsDep JobManager JobNotFound JobsInvalidate JoinJobRoom
JoinProviderRoom LeaveJobRoom LeaveProviderRoom PaginatedResponse ProblemException Provider ProviderNotFound
ProviderRecord ProviderRequest ProviderResultReady ProviderTimeoutError ProvidersInvalidate ResultBackend
ResultBackendDep SchemaConflict Task TaskAvailable TaskNotFound TaskStatus TaskStatusEvent Worker
WorkerJobLink WorkerNotFound WritableRoomDep build_task_status_emission cleanup_stale_workers
cleanup_stuck_internal_tasks cleanup_worker emit get_frame_room_cleanup get_joblib_settings
get_result_backend get_tsio problem_exception_handler register_internal_jobs register_internal_tasks
request_hash router run_sweeper validate_room_id verify_writable_room
"""


def test_all_lists_the_public_names() -> None:
    """`__all__` is sorted and complete, and `dir()` returns the same names."""
    assert sorted(zndraw_joblib.__all__) == zndraw_joblib.__all__
    assert set(zndraw_joblib.__all__) == PUBLIC
    assert set(dir(zndraw_joblib)) >= PUBLIC


def test_every_name_resolves_and_is_documented() -> None:
    """Each name is loaded on first use, also in a new process; classes and functions have a docstring."""
    for name in zndraw_joblib.__all__:
        found = getattr(zndraw_joblib, name)
        if inspect.isclass(found) or inspect.isroutine(found):
            assert inspect.getdoc(found), name
    script = "import zndraw_joblib as z; [getattr(z, name) for name in z.__all__]"
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


def test_every_name_of_the_client_resolves() -> None:
    """`zndraw_joblib.client` has the names of clients, the same objects as the package."""
    for name in client.__all__:
        assert getattr(client, name) is getattr(zndraw_joblib, name)


def test_a_star_import_imports_exactly_these_names() -> None:
    """`from zndraw_joblib import *` imports the public names and no other."""
    namespace: dict[str, object] = {}
    exec("from zndraw_joblib import *", namespace)  # noqa: S102 - a function may not contain a star import
    assert set(namespace) - {"__builtins__"} == PUBLIC


def test_the_names_of_version_0_1_7_exist() -> None:
    """All 62; so do the classes of every event and every problem."""
    assert len(NAMES_OF_0_1_7.split()) == 62
    assert set(NAMES_OF_0_1_7.split()) <= PUBLIC
    for cls in problems.PROBLEMS.values():
        assert getattr(zndraw_joblib, cls.__name__) is cls
    for cls in events.Event.__subclasses__():
        if cls.__module__ == events.__name__:  # a test of a host may have events of its own
            assert getattr(zndraw_joblib, cls.__name__) is cls


def test_an_unknown_name_is_an_attribute_error() -> None:
    """Importing it is an ImportError, as for any module."""
    assert not hasattr(zndraw_joblib, "Unknown")
    assert getattr(zndraw_joblib, "Unknown", None) is None
    with pytest.raises(ImportError, match="Unknown"):
        exec("from zndraw_joblib import Unknown", {})  # noqa: S102 - as another program does


def test_a_problem_is_also_a_builtin_exception() -> None:
    """404 a KeyError, 401 and 403 a PermissionError, 400, 409 and 422 a ValueError."""
    builtin = {400: ValueError, 401: PermissionError, 403: PermissionError, 404: KeyError, 409: ValueError}
    builtin |= {413: ValueError, 422: ValueError}
    for cls in problems.PROBLEMS.values():
        assert issubclass(cls, builtin.get(cls.status, Exception)), cls


def test_a_problem_has_the_methods_of_version_0_1_7() -> None:
    """Every kind has `problem_id`, `type_uri`, `create`, `exception` and `raise_for_client`."""
    for cls in problems.PROBLEMS.values():
        assert cls.type_uri() == f"/v1/problems/{cls.problem_id()}"
        body = cls.create("what happened", "/where")
        assert (body.type, body.title, body.status) == (cls.type_uri(), cls.title, cls.status)
        assert (body.detail, body.instance) == ("what happened", "/where")
        error = cls.exception("what happened", headers={"Retry-After": "1"})
        assert (str(error), error.headers) == ("what happened", {"Retry-After": "1"})
        with pytest.raises(cls) as raised:
            cls.raise_for_client(body)
        assert raised.value.problem == body


def test_every_class_and_function_names_its_module() -> None:
    """Every public class and function is defined in the package and importable from its `__module__`."""
    for name in zndraw_joblib.__all__:
        found = getattr(zndraw_joblib, name)
        if inspect.isclass(found) or inspect.isfunction(found):
            assert found.__module__.startswith("zndraw_joblib."), name
            assert getattr(importlib.import_module(found.__module__), found.__name__) is found, name


def test_a_name_of_the_server_names_the_extra_that_is_missing() -> None:
    """An installation for workers has no FastAPI."""
    code = "import sys; sys.modules['fastapi'] = None; from zndraw_joblib import JobLib"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    expected = "zndraw_joblib.JobLib needs the extra 'server': the module 'fastapi' is not installed"
    assert expected in done.stderr
