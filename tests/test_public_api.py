"""The names that others import: all there, each from its one home, and none by accident."""

import importlib
import inspect
import subprocess
import sys

import pytest

import zndraw_joblib
from zndraw_joblib.contract import events, problems

# Adding a name is a promise, taking one away breaks somebody: both are done here on purpose.
NAMES = """
ApiManager Backoff Category ClaimedProviderRequest ClaimedTask Conflict ContentTooLarge
DispatchFailed Emission EmptyReason Event Extension FailedByOperator FileContent Folder
FolderListing Forbidden GiveUp GuardedExecutor HeartbeatRequest Identity InternalContext
InternalExecutor InternalJobNotConfigured InternalRegistry InternalServerError InternalTimeout
InvalidCategory InvalidPayload InvalidRequest InvalidRoomId InvalidSchema InvalidTaskTransition
Job JobLib JobLibSettings JobManager JobNotFound JobPolicy JobRegisterRequest JobResponse
JobSummary JobsInvalidate JoinJobRoom JoinProviderRoom JoinRoom LeaveJobRoom LeaveProviderRoom
LeaveRoom Locked MethodNotAllowed NamedTask NonRetryable NotFound PaginatedResponse
PlannedChange Problem ProblemException Provider ProviderClaimRequest ProviderClaimResponse
ProviderError ProviderFailed ProviderNotConnected ProviderNotFound ProviderRecord
ProviderRegisterRequest ProviderRequest ProviderResponse ProviderResult ProviderResultReady
ProviderTimeout ProvidersInvalidate ReadResult Reason Released ResultBackend Retried RetryOn
RunTimeout SchemaConflict ServiceUnavailable StaleReport StaleResult StartTimeout
StreamingBackend SweeperCycle SweeperMode SweeperPreview SweeperState SweeperUpdate Task
TaskActionRequest TaskAvailable TaskClaimRequest TaskClaimResponse TaskExpired TaskExplanation
TaskHistory TaskNotFound TaskResponse TaskStatus TaskStatusEvent TaskSubmitRequest
TaskUpdateRequest TaskVerdict TooManyRequests Transition Unauthorized Verdict Worker
WorkerJobLink WorkerLost WorkerNotFound WorkerResponse WorkerSummary check_result_backend
cleanup_stale_workers cleanup_stuck_internal_tasks cleanup_worker connect emit
get_result_backend problem_exception_handler register_internal_jobs register_internal_tasks
register_socketio_handlers router run_sweeper share_folder validate_room_id verify_readable_room
verify_writable_room
"""
PUBLIC = set(NAMES.split())

# What hosts and workers written for the existing package of this name import, without providers and brokers.
RELIED_ON = """
router JobLibSettings run_sweeper cleanup_worker cleanup_stale_workers cleanup_stuck_internal_tasks
JobManager ClaimedTask Extension Category ApiManager verify_writable_room validate_room_id Emission emit
ProblemException problem_exception_handler Job Worker Task TaskStatus WorkerJobLink PaginatedResponse
register_internal_jobs register_internal_tasks InternalRegistry InternalExecutor
"""


def test_the_public_names_are_these() -> None:
    """`__all__` is sorted and complete, and `dir()` shows the same."""
    assert sorted(zndraw_joblib.__all__) == zndraw_joblib.__all__
    assert set(zndraw_joblib.__all__) == PUBLIC
    assert set(dir(zndraw_joblib)) >= PUBLIC


def test_every_name_resolves_and_says_what_it_is() -> None:
    """Each is there on first use, in a fresh process too, and has a docstring if it is code."""
    for name in zndraw_joblib.__all__:
        found = getattr(zndraw_joblib, name)
        if inspect.isclass(found) or inspect.isroutine(found):
            assert inspect.getdoc(found), name
    script = "import zndraw_joblib as z; [getattr(z, name) for name in z.__all__]"
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


def test_a_star_import_gives_exactly_these_names() -> None:
    """No more and no less."""
    namespace: dict[str, object] = {}
    exec("from zndraw_joblib import *", namespace)  # noqa: S102 - inside a function a star is not allowed
    assert set(namespace) - {"__builtins__"} == PUBLIC


def test_the_names_that_others_rely_on_are_there() -> None:
    """Those of the existing package, every event and every problem."""
    assert set(RELIED_ON.split()) <= PUBLIC
    for cls in problems.PROBLEMS.values():
        assert getattr(zndraw_joblib, cls.__name__) is cls
    for cls in events.Event.__subclasses__():
        assert getattr(zndraw_joblib, cls.__name__) is cls


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As for any module, and an import of it is an ImportError."""
    assert not hasattr(zndraw_joblib, "Unheard")
    assert getattr(zndraw_joblib, "Unheard", None) is None
    with pytest.raises(ImportError, match="Unheard"):
        exec("from zndraw_joblib import Unheard", {})  # noqa: S102 - as another program would


def test_a_problem_is_the_builtin_that_clients_catch() -> None:
    """404 a KeyError, 401 and 403 a PermissionError, 400, 409 and 422 a ValueError."""
    builtin = {400: ValueError, 401: PermissionError, 403: PermissionError, 404: KeyError, 409: ValueError}
    builtin |= {413: ValueError, 422: ValueError}
    for cls in problems.PROBLEMS.values():
        assert issubclass(cls, builtin.get(cls.status, Exception)), cls


def test_a_problem_makes_itself_as_before() -> None:
    """`problem_id`, `type_uri`, `create`, `exception` and `raise_for_client` of every kind."""
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


def test_modules_are_found_where_they_are_named() -> None:
    """Every public class and function lives in the package, and can be imported from its own module."""
    for name in zndraw_joblib.__all__:
        found = getattr(zndraw_joblib, name)
        if inspect.isclass(found) or inspect.isfunction(found):
            assert found.__module__.startswith("zndraw_joblib."), name
            assert getattr(importlib.import_module(found.__module__), found.__name__) is found, name
