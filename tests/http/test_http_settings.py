"""The settings in force, as operators read them."""

from pathlib import Path

import httpx
import pytest
from rest import V1, AsUser, expect_problem

from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import (
    ALIASES,
    JobLibSettings,
    ServerSettings,
    descriptions,
    report,
    without_password,
)

SECRET = "a-secret-of-the-tests"


@pytest.fixture
def kind() -> str:
    """Run the tests on one database: settings are not in it."""
    return "sqlite"


async def test_each_setting_has_its_source(
    client: httpx.AsyncClient, settings: ServerSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Argument, environment, file or default; aliases count for their setting."""
    (tmp_path / "pyproject.toml").write_text(
        "[tool.zndraw.joblib]\nprune_max_rows = 77\nroom_max_in_flight = 5\nclaim_order = 'fair'\n"
    )
    monkeypatch.chdir(tmp_path)
    given = {"SWEEP_THRESHOLD_SECONDS": "120", "room_max_in_flight": "6", "PRUNE_MAX_ROW": "1", "QQQ": "1"}
    for name, value in given.items():
        monkeypatch.setenv(f"ZNDRAW_JOBLIB_{name}", value)
    app = create_app(ServerSettings(database_url=settings.database_url, max_streams=3))
    found = report(app.state.joblib.settings)
    by_name = {entry.name: entry for entry in found.settings}
    assert set(by_name) == set(ServerSettings.model_fields) - ALIASES.keys()
    expected = {
        "max_streams": (3, "argument"),
        "worker_timeout_seconds": (120, "environment"),
        "room_max_in_flight": (6, "environment"),
        "prune_max_rows": (77, "file"),
        "claim_order": ("fair", "file"),
        "max_room_events": (10_000, "default"),
    }
    assert {name: (by_name[name].value, by_name[name].source) for name in expected} == expected
    assert by_name["worker_timeout_seconds"].default == 60
    row, other = found.unknown
    assert row.endswith("Did you mean ZNDRAW_JOBLIB_PRUNE_MAX_ROWS?")
    assert "ZNDRAW_JOBLIB_QQQ has no effect" in other
    app.state.joblib.settings.prune_max_rows = 78
    assert {e.name: e.source for e in report(app.state.joblib.settings).settings}[
        "prune_max_rows"
    ] == "argument"
    await app.state.joblib.runtime.database.close()


async def test_only_superusers_read_them_and_no_secret_is_in_them(
    client: httpx.AsyncClient, as_user: AsUser, settings: ServerSettings
) -> None:
    """Tokens have no value; URLs have no password."""
    expect_problem(await (await as_user("ada")).get(f"{V1}/admin/settings"), 403, "forbidden")
    settings.admin_token = settings.metrics_token = SECRET  # type: ignore[assignment]
    settings.redis_url = f"rediss://queue:{SECRET}@redis.example.org:6379/0"
    settings.database_url = f"postgresql://joblib@db.example.org/queue?password={SECRET}&sslmode=require"
    response = await client.get(f"{V1}/admin/settings")
    assert response.status_code == 200
    assert SECRET not in response.text
    by_name = {entry["name"]: entry for entry in response.json()["settings"]}
    assert {name for name, entry in by_name.items() if entry["is_secret"]} == {"admin_token", "metrics_token"}
    assert by_name["redis_url"]["value"] == "rediss://queue:***@redis.example.org:6379/0"
    assert by_name["database_url"]["value"].endswith("db.example.org/queue?password=***&sslmode=require")


def test_no_form_of_a_url_shows_its_password(subtests: pytest.Subtests) -> None:
    """Also one that is not escaped, and one in the query."""
    for url, shown in [
        ("sqlite+aiosqlite:///zndraw-joblib.db", "sqlite+aiosqlite:///zndraw-joblib.db"),
        ("postgresql://joblib:pass@db/queue", "postgresql://joblib:***@db/queue"),
        ("postgresql://joblib:pa@ss@db/queue", "postgresql://joblib:***@db/queue"),
        ("postgresql://joblib:pa/ss@db/queue", "postgresql://***"),
        ("postgresql://joblib:pa?ss@db/queue", "postgresql://***"),
        ("postgresql://joblib:pa#ss@db/queue", "postgresql://***"),
        ("postgresql://[db/queue?pass", "***"),
        ("redis://:pass@[::1]:6379/0", "redis://:***@[::1]:6379/0"),
        ("unix:///run/redis.sock?db=0&password=pass", "unix:///run/redis.sock?db=0&password=***"),
        ("postgresql:///queue?host=/run/pg&sslkey=/k", "postgresql:///queue?host=/run/pg&sslkey=***"),
    ]:
        with subtests.test(url=url, shown=shown):
            assert without_password(url) == shown


def test_each_description_is_that_of_the_reference() -> None:
    """Each setting has one, without links, and the class of a host's settings has no other."""
    found = descriptions()
    assert set(ServerSettings.model_fields) - ALIASES.keys() <= set(found)
    assert all(text and "](" not in text for text in found.values())
    assert found["build"].startswith("A text of at most 64 characters")
    assert len(report(JobLibSettings()).settings) == len(set(JobLibSettings.model_fields) - ALIASES.keys())
