"""The deployment files use settings, commands, ports and paths that the code knows."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.known import OTHER_VARIABLES, SETTINGS, parse
from zndraw_joblib.cli.server.processes import KEEP_ALIVE_SECONDS, STOP_SECONDS
from zndraw_joblib.jobs.loading import load_extensions
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import MIN_TOKEN_LENGTH, ServerSettings

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROGRAMS = {name: one for name, one in SERVICES.items() if one["image"] == COMPOSE["x-program"]["image"]}
SERVERS = {name: one for name, one in PROGRAMS.items() if one["command"][0] == "serve"}
CADDY = (ROOT / "deploy" / "Caddyfile").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def only_match(pattern: str, text: str) -> str:
    """Return the only match of a pattern."""
    [found] = re.findall(pattern, text, re.MULTILINE)
    return str(found)


def seconds(text: str) -> int:
    """Return a duration of Compose or Caddy in seconds."""
    return int(text[:-1]) * {"s": 1, "m": 60}[text[-1]]


def test_services_and_their_dependencies() -> None:
    """Each service starts after the services that it needs."""
    assert set(SERVICES) == {"postgres", "valkey", "migrate", "server-1", "server-2", "proxy", "worker"}
    assert set(SERVERS) == {"server-1", "server-2"}
    needed = {
        (name, other, how["condition"])
        for name, one in SERVICES.items()
        for other, how in one.get("depends_on", {}).items()
    }
    assert needed == {
        ("migrate", "postgres", "service_healthy"),
        *((server, "migrate", "service_completed_successfully") for server in SERVERS),
        *((server, "valkey", "service_healthy") for server in SERVERS),
        *(("proxy", server, "service_healthy") for server in SERVERS),
        ("worker", "proxy", "service_healthy"),
    }


def test_every_variable_is_known() -> None:
    """The server would silently ignore a misspelled setting."""
    variables = {
        (name, text) for name, program in PROGRAMS.items() for text in program.get("environment", {})
    }
    assert [(name, text) for name, text in variables if text not in SETTINGS | OTHER_VARIABLES] == []


def test_the_settings_are_valid() -> None:
    """With secrets filled in, the server accepts all settings."""
    filled = {
        variable.removeprefix("ZNDRAW_JOBLIB_").lower(): re.sub(r"\$\{\w+:\?[^}]*\}", "a" * 48, value)
        for variable, value in SERVERS["server-1"]["environment"].items()
        if variable in SETTINGS
    }
    settings = ServerSettings(**filled)
    assert settings.database_url == f"postgresql://joblib:{'a' * 48}@postgres:5432/joblib"
    assert settings.socketio_transports == ["websocket"]
    assert SERVICES["postgres"]["environment"]["POSTGRES_DB"] == "joblib"


def test_every_command_exists(subtests: pytest.Subtests) -> None:
    """The program has each command and its options, and is the image's entry point."""
    assert 'ENTRYPOINT ["zndraw-joblib"]' in DOCKERFILE
    for name, program in PROGRAMS.items():
        with subtests.test(name):
            parse(program["command"])
            checked = program.get("healthcheck", {}).get("test", [])
            if "zndraw-joblib" in checked:
                parse(checked[checked.index("zndraw-joblib") + 1 :])


def test_the_image_serves_by_default() -> None:
    """`docker run` without a command serves on the exposed port."""
    command = json.loads(only_match(r"^CMD (.*)$", DOCKERFILE))
    assert parse(command)["port"] == int(only_match(r"^EXPOSE (\d+)$", DOCKERFILE))
    assert "\nUSER joblib\n" in DOCKERFILE


def test_ports_and_paths_match() -> None:
    """The proxy uses the servers' ports, and health checks use paths that exist."""
    for name, server in SERVERS.items():
        port = parse(server["command"])["port"]
        assert f" {name}:{port}" in CADDY
        assert f"http://127.0.0.1:{port}/health/live" in server["healthcheck"]["test"][-1]
    listening = only_match(r"^:(\d+) \{$", CADDY)
    assert SERVICES["proxy"]["ports"][0].endswith(f":{listening}")
    assert SERVICES["worker"]["environment"]["ZNDRAW_JOBLIB_URL"] == f"http://proxy:{listening}"
    checked = re.findall(r"/health/\w+", CADDY + str(SERVICES))
    assert {"/health/live", "/health/ready"} == set(checked)
    assert set(checked) <= set(create_app(ServerSettings(database_url="sqlite://")).openapi()["paths"])
    assert only_match(r"health_uri (\S+)", CADDY) == "/health/ready"


def test_the_proxy_waits_longer_than_a_long_poll() -> None:
    """The proxy also closes idle connections before the servers do."""
    timeout = seconds(only_match(r"response_header_timeout (\S+)", CADDY))
    assert timeout >= ServerSettings().long_poll_max_wait_seconds + 10
    assert seconds(only_match(r"keepalive (\S+)", CADDY)) < KEEP_ALIVE_SECONDS


def test_services_are_checked_and_restarted() -> None:
    """All services but the migration, which exits, restart; each has enough time to stop."""
    for name, service in SERVICES.items():
        if name == "migrate":
            assert service["restart"].startswith("on-failure")
        else:
            assert service["restart"] == "unless-stopped"
            assert service["healthcheck"]["test"]
            assert seconds(service["stop_grace_period"]) >= 10
    assert all(seconds(server["stop_grace_period"]) > STOP_SECONDS for server in SERVERS.values())


def test_no_secret_has_a_default() -> None:
    """Compose stops without a secret, and the example leaves each empty."""
    text = (ROOT / "docker-compose.yml").read_text()
    example = (ROOT / "deploy" / "example.env").read_text()
    used = re.findall(r"\$\{(\w+)(:?[-?])", text)
    assert {name for name, _ in used} == {"POSTGRES_PASSWORD", "VALKEY_PASSWORD", "ADMIN_TOKEN", "PUBLISH"}
    for name, kind in used:
        assert kind == (":-" if name == "PUBLISH" else ":?")
    assert set(re.findall(r"^(\w+)=$", example, re.MULTILINE)) == {name for name, _ in used} - {"PUBLISH"}
    assert f"at least {MIN_TOKEN_LENGTH} characters" in example
    assert "${PUBLISH:-127.0.0.1:" in text  # plain HTTP stays on this machine


def test_images_have_a_version() -> None:
    """A newer major version might not read existing data."""
    images = {one["image"] for one in SERVICES.values()} - {COMPOSE["x-program"]["image"]}
    images |= set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE))
    assert all(re.search(r":\d+", image) for image in images)


def test_files_that_are_copied_or_mounted_exist() -> None:
    """The image's sources are not in .dockerignore."""
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    kept = set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    assert {source if source in kept else source.split("/")[0] for source in sources} == kept
    mounted = {one.split(":")[0] for service in SERVICES.values() for one in service.get("volumes", [])}
    named = set(COMPOSE["volumes"])
    assert all((ROOT / path).exists() for path in {*sources, *(mounted - named)})
    assert named < mounted


def test_the_worker_has_jobs(tmp_path: Path) -> None:
    """The example's extensions can be loaded."""
    [mount] = SERVICES["worker"]["volumes"]
    source, target, _ = mount.split(":")
    assert parse(SERVICES["worker"]["command"])["target"] == target
    assert [cls.__name__ for cls in load_extensions(str(ROOT / source))] == ["Area", "Pause"]
