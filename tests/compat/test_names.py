"""The import paths and names of version 0.1.x: each works, and each warns where it is used."""

import importlib
import pickle
import pkgutil
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

import zndraw_joblib
from zndraw_joblib import TaskStatus
from zndraw_joblib.compat_0_1.names import NAMES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "migrate-from-0.1.md"
MODULES = "client dependencies events exceptions models provider registry router schemas settings sweeper"
EVERY_NAME = [(module, name) for module, names in NAMES.items() for name in names]


def test_each_name_warns_and_is_the_current_one(subtests: pytest.Subtests) -> None:
    """The warning names the old place and the new one; a name that only moved is the same object."""
    assert len(EVERY_NAME) > 80
    for module, name in EVERY_NAME:
        with subtests.test(f"{module}.{name}"):
            check_name(module, name)


def check_name(module: str, name: str) -> None:
    """Read an old name, and compare its warning and its value."""
    old, known = importlib.import_module(f"zndraw_joblib.{module}"), NAMES[module][name]
    with pytest.warns(DeprecationWarning, match=f"zndraw_joblib.{module}.{name} ") as warned:
        value = getattr(old, name)
    [warning] = warned
    assert known.instead in str(warning.message)
    assert warning.filename == __file__
    if known.target.startswith("zndraw_joblib:"):
        assert value is getattr(zndraw_joblib, known.target.partition(":")[2])
    else:
        assert value is pkgutil.resolve_name(known.target)
        assert known.target.startswith("zndraw_joblib.compat_0_1.")


def test_every_module_of_version_0_1_is_there() -> None:
    """No more, no less; each lists its names, and an unknown one is an AttributeError."""
    assert list(NAMES) == MODULES.split()
    for module, names in NAMES.items():
        old = importlib.import_module(f"zndraw_joblib.{module}")
        if module != "client":  # a current module, which only finds old names
            assert list(names) == dir(old) == old.__all__
        with pytest.raises(AttributeError, match="Unknown"):
            _ = old.Unknown


def test_a_star_import_imports_the_names() -> None:
    """With one warning for each."""
    namespace: dict[str, object] = {}
    with pytest.warns(DeprecationWarning, match="zndraw_joblib.models") as warned:
        exec("from zndraw_joblib.models import *", namespace)  # noqa: S102 - a function may not contain it
    assert set(namespace) - {"__builtins__", "__warningregistry__"} == set(NAMES["models"])
    assert len(warned) == len(NAMES["models"])


ORDERS = [
    "import zndraw_joblib.router; from zndraw_joblib import router",
    "from zndraw_joblib import router; import zndraw_joblib.router",
    "from zndraw_joblib.router import router; import zndraw_joblib.router as r; assert r is router",
    "import importlib; importlib.import_module('zndraw_joblib.router'); from zndraw_joblib import router",
]


@pytest.mark.parametrize("order", ORDERS)
def test_the_module_router_does_not_hide_the_router(order: str) -> None:
    """Whatever is imported first, `zndraw_joblib.router` is the APIRouter."""
    script = f"{order}\nimport zndraw_joblib\nassert router is zndraw_joblib.router, router\nrouter.routes"
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)


def test_the_package_itself_uses_no_old_name() -> None:
    """All public names load without a warning; those of rows also load the old names of columns."""
    script = (
        "import sys, zndraw_joblib as z; [getattr(z, name) for name in z.__all__]\n"
        "print(*[name for name in sys.modules if 'compat_0_1' in name])"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], check=True, capture_output=True)
    assert done.stdout.decode().split() == ["zndraw_joblib.compat_0_1", "zndraw_joblib.compat_0_1.rows"]


def test_old_pickles_load() -> None:
    """A pickle names the module of its class, which may be an old one."""
    dumped = pickle.dumps(TaskStatus.FAILED, 0).replace(
        b"zndraw_joblib.wire.statuses", b"zndraw_joblib.models"
    )
    with pytest.warns(DeprecationWarning, match="models.TaskStatus"):
        assert pickle.loads(dumped) is TaskStatus.FAILED  # noqa: S301 - written above


def test_the_page_lists_each_name() -> None:
    """The table of the how-to page has each old name with what to use instead, and no other."""
    rows = re.findall(r"^\| `(\w+)\.(\w+)` \| (.+?) \| .*\|$", PAGE.read_text(), re.MULTILINE)
    listed = {(module, name): instead.replace("`", "") for module, name, instead in rows}
    assert listed == {key: NAMES[key[0]][key[1]].instead for key in EVERY_NAME}


@pytest.mark.filterwarnings("ignore:zndraw_joblib")
class TestValues:
    """What the names of version 0.1.x do."""

    def test_the_state_machine(self) -> None:
        """Three statuses are final; a claim is one of the transitions."""
        from zndraw_joblib.models import TERMINAL_STATUSES, VALID_TRANSITIONS

        pending, claimed, running, completed, failed, cancelled = TaskStatus
        assert {completed, failed, cancelled} == TERMINAL_STATUSES
        assert {
            pending: {claimed, cancelled},
            claimed: {running, failed, cancelled},
            running: {completed, failed, cancelled},
            **{status: set() for status in TERMINAL_STATUSES},
        } == VALID_TRANSITIONS

    def test_the_header_prefer(self, subtests: pytest.Subtests) -> None:
        """Its seconds, None without a wait."""
        for header, seconds in [
            (None, None),
            ("", None),
            ("wait=5", 5),
            ("respond-async, Wait=7", 7),
            ("wait=0", 0),
            ("wait=x", None),
        ]:
            with subtests.test(header=header, seconds=seconds):
                from zndraw_joblib.router import parse_prefer_wait

                assert parse_prefer_wait(header) == seconds

    def test_a_hash_of_parameters(self) -> None:
        """It is the id of the event that is built from the same parameters."""
        from zndraw_joblib.dependencies import request_hash
        from zndraw_joblib.events import ProviderRequest

        params = {"path": "/a", "all": "1"}
        event = ProviderRequest.from_dict_params(provider_name="lab:words:one", params=params)
        assert event.request_id == request_hash({"all": "1", "path": "/a"})
        assert event.params == '{"all":"1","path":"/a"}'
        assert event.model_dump().keys() == {"request_id", "provider_name", "params"}

    def test_events_have_text_ids(self) -> None:
        """A UUID becomes a text; a current event counts as one of the old class, and not of another."""
        from zndraw_joblib import events

        task_id = uuid4()
        old = events.TaskAvailable(job_name="@global:a:B", room_id="lab", task_id=task_id)
        current = zndraw_joblib.TaskAvailable(job_name="@global:a:B", room_id="lab", task_id=task_id)
        assert old.task_id == str(task_id)
        assert old.event_name == current.event_name == "task_available"
        assert isinstance(current, events.TaskAvailable)
        assert isinstance(current, events.FrozenEvent)
        assert not isinstance(current, events.TaskStatusEvent)
        for cls in (events.JoinJobRoom, events.LeaveJobRoom):
            assert cls(job_name="@global:a:B", worker_id="one").worker_id == "one"
        for cls in (events.JoinProviderRoom, events.LeaveProviderRoom):
            assert cls(provider_name="lab:a:B", worker_id="one").worker_id == "one"

    def test_a_host_names_its_own_events(self) -> None:
        """By the class, or by `event_name`."""
        from typing import ClassVar

        from zndraw_joblib.events import FrozenEvent

        class FrameChanged(FrozenEvent):
            frame: int

        class Renamed(FrozenEvent):
            event_name: ClassVar[str] = "other"

        assert (FrameChanged.event_name, Renamed.event_name) == ("frame_changed", "other")
        assert hash(FrameChanged(frame=1)) == hash(FrameChanged(frame=1))

    def test_the_status_of_a_task_as_an_event(self) -> None:
        """From a response with any ids, to the room of the task."""
        from zndraw_joblib.events import build_task_status_emission
        from zndraw_joblib.schemas import TaskResponse

        now = datetime.now(UTC)
        task = TaskResponse(
            id="t", job_name="@global:a:B", room_id="lab", status="failed", created_at=now, error="no"
        )
        event, room = build_task_status_emission(task, task.job_name)
        assert room == "room:lab"
        expected = {"id": "t", "name": "@global:a:B", "room_id": "lab", "status": "failed", "error": "no"}
        assert expected.items() <= event.model_dump(mode="json").items()
        current = zndraw_joblib.TaskResponse(**{**task.model_dump(), "id": uuid4()})
        assert isinstance(current, TaskResponse)

    def test_the_error_of_a_provider(self) -> None:
        """The exception of the SDK is the problem of the server."""
        from zndraw_joblib.exceptions import ProviderTimeout, ProviderTimeoutError

        with pytest.raises(ProviderTimeoutError) as raised:
            ProviderTimeout.raise_for_client(ProviderTimeout.create("too slow"))
        assert isinstance(raised.value, TimeoutError)


def test_only_the_package_itself_refers_to_this_one() -> None:
    """No module imports it, or names it in a text for an import."""
    package = ROOT / "src" / "zndraw_joblib"
    modules = [path for path in package.rglob("*.py") if "compat_0_1" not in path.parts]
    assert [path for path in modules if "compat_0_1" in path.read_text()] == [package / "__init__.py"]
