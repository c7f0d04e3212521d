"""Settings from arguments, the environment (``ZNDRAW_JOBLIB_…``), ``[tool.zndraw.joblib]``; their report."""

import importlib.util
import os
import re
from collections.abc import Collection
from functools import cache
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qsl, urlencode, urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    PyprojectTomlConfigSettingsSource,
    SettingsConfigDict,
)

from zndraw_joblib.jobs.extensions import Category
from zndraw_joblib.jobs.logs import PREFIX, describe, unknown_variables
from zndraw_joblib.wire.bodies import CheckedKeywords
from zndraw_joblib.wire.messages import SweeperMode
from zndraw_joblib.wire.operators import SettingEntry, Settings
from zndraw_joblib.wire.policy import WithoutWorkers
from zndraw_joblib.wire.scopes import scopes_of

DEFAULT_DATABASE_URL = "sqlite+aiosqlite:///zndraw-joblib.db"
HEARTBEATS_PER_TIMEOUT = 4
UNNAMED_HEARTBEATS = 3
MAX_PROCESSES = 64
MIB = 1024 * 1024
ALIASES = {
    "sweep_threshold_seconds": "worker_timeout_seconds",
    "sweep_interval_seconds": "sweeper_interval_seconds",
    "result_backend": "provider_result_backend",
    "workers": "processes",
}


def _split(value: object) -> object:
    """Return a list from the environment, written as ``a,b`` or as JSON."""
    if not isinstance(value, str):
        return value
    return [part.strip(" \"'") for part in value.strip("[] ").split(",") if part.strip(" \"'")]


def _check_ports(values: list[str]) -> list[str]:
    for value in values:
        first, _, last = value.partition("-")
        if not (
            first.isdecimal()
            and (last or first).isdecimal()
            and 1 <= int(first) <= int(last or first) < 65536
        ):
            raise ValueError(f"{value!r} is no port, like 443, and no range of ports, like 8000-8999")
    return values


def _check_networks(values: list[str]) -> list[str]:
    return [str(ip_network(value, strict=False)) for value in values]


WordList = Annotated[list[str], BeforeValidator(_split)]
PortList = Annotated[list[str], BeforeValidator(_split), AfterValidator(_check_ports)]
NetworkList = Annotated[list[str], BeforeValidator(_split), AfterValidator(_check_networks)]
Transports = Annotated[list[Literal["polling", "websocket"]], BeforeValidator(_split)]
ClaimName = Annotated[str, Field(min_length=1, max_length=200)]


def _check_roles(names: list[str]) -> list[str]:
    scopes_of(names)
    return names


RoleNames = Annotated[list[str], Field(max_length=20), AfterValidator(_check_roles)]
Seconds = Annotated[float, Field(gt=0, le=31_536_000)]
KeepDays = Annotated[float, Field(ge=0, le=36_500)]


class _Environment(EnvSettingsSource):
    """The environment. A list may be words, which `_split` separates."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """Return a value that its field reads as it is, or the value from JSON."""
        if any(isinstance(mark, BeforeValidator) for mark in field.metadata):
            return value
        return super().decode_complex_value(field_name, field, value)


def _check_redis(value: str) -> str:
    if not value.startswith(_REDIS_SCHEMES):
        raise ValueError(f"redis_url must begin with {' or '.join(_REDIS_SCHEMES)}")
    return value


_REDIS_SCHEMES = ("redis://", "rediss://", "unix://")
RedisUrl = Annotated[str, AfterValidator(_check_redis)]


class JobLibSettings(CheckedKeywords, BaseSettings):
    """Settings of the queue. Every field may change while the server runs. An unknown one is a TypeError."""

    model_config = SettingsConfigDict(
        env_prefix="ZNDRAW_JOBLIB_",
        pyproject_toml_table_header=("tool", "zndraw", "joblib"),
        validate_assignment=True,
        extra="ignore",
    )

    worker_timeout_seconds: Seconds = 60
    sweeper_interval_seconds: Seconds = 30
    unnamed_task_timeout_seconds: Annotated[float, Field(ge=0, le=31_536_000)] | None = None
    sweeper_mode: SweeperMode = SweeperMode.ENFORCE
    # Aliases of the two above.
    sweep_threshold_seconds: Seconds | None = None
    sweep_interval_seconds: Seconds | None = None
    heartbeat_interval_seconds: Seconds | None = None
    keep_finished_days: Annotated[float, Field(gt=0, le=36_500)] | None = None
    keep_completed_days: KeepDays | None = None
    keep_failed_days: KeepDays | None = None
    keep_cancelled_days: KeepDays | None = None
    statistics_minutes_days: Annotated[float, Field(gt=0, le=365)] = 2
    statistics_hours_days: Annotated[float, Field(gt=0, le=36_500)] = 90
    task_log_max_lines: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    task_log_max_bytes: Annotated[int, Field(ge=1024, le=64 * MIB)] = 256 * 1024
    audit_days: Annotated[float, Field(gt=0, le=36_500)] = 90
    idempotency_key_hours: Annotated[float, Field(gt=0, le=8760)] = 24
    max_idempotency_keys: Annotated[int, Field(ge=1)] = 1_000_000
    prune_max_rows: Annotated[int, Field(ge=1)] = 20_000
    prune_max_seconds: Annotated[float, Field(gt=0, le=3600)] = 5
    claim_order: Literal["fifo", "fair"] = "fifo"
    room_max_in_flight: Annotated[int, Field(ge=1)] | None = None
    internal_task_timeout_seconds: Seconds = 3600
    internal_abandon_seconds: Seconds = 30
    internal_max_abandoned: Annotated[int, Field(ge=0, le=1000)] = 16
    long_poll_max_wait_seconds: Annotated[float, Field(ge=0, le=3600)] = 60
    claim_max_attempts: Annotated[int, Field(ge=1, le=1000)] = 10
    claim_base_delay_seconds: Seconds = 0.01
    allowed_categories: WordList = Field(default_factory=lambda: [c.value for c in Category], min_length=1)
    cross_room_jobs: bool = False
    validate_payload: bool = True
    without_workers: WithoutWorkers = WithoutWorkers.FORGET
    keep_unserved_jobs_days: Annotated[float, Field(gt=0, le=36_500)] | None = 30
    max_share_per_user: Annotated[float, Field(gt=0, le=1)] = 0.5
    max_waiting_requests: Annotated[int, Field(ge=0)] = 20_000
    max_workers: Annotated[int, Field(ge=1)] = 20_000
    max_jobs: Annotated[int, Field(ge=1)] = 100_000
    max_providers: Annotated[int, Field(ge=1)] = 100_000
    max_schedules: Annotated[int, Field(ge=1)] = 100_000
    max_groups: Annotated[int, Field(ge=1)] = 100_000
    max_pending_tasks: Annotated[int, Field(ge=1)] = 10_000_000
    max_submits_per_user: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    submit_window_seconds: Annotated[float, Field(ge=1, le=86_400)] = 60
    max_jobs_per_room: Annotated[int, Field(ge=1)] = 10_000
    max_schedules_per_room: Annotated[int, Field(ge=1)] = 10_000
    max_claims_per_worker: Annotated[int, Field(ge=1)] = 64
    disconnect_grace_seconds: Annotated[float, Field(ge=-1, le=3600)] = 10
    allowed_provider_categories: WordList | None = None
    filebrowser_require_superuser: bool = True
    provider_result_ttl_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    provider_inflight_ttl_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    provider_long_poll_default_seconds: Annotated[float, Field(ge=0, le=3600)] = 5
    provider_long_poll_max_seconds: Annotated[float, Field(ge=0, le=3600)] = 30
    provider_result_backend: Literal["auto", "memory", "database", "redis"] = "auto"
    result_backend: Literal["auto", "memory", "database", "redis"] | None = None
    max_result_bytes: Annotated[int, Field(ge=1, le=512 * MIB)] = 64 * MIB
    max_cached_bytes: Annotated[int, Field(ge=1)] = 256 * MIB
    task_result_backend: Literal["auto", "database", "memory", "files", "redis", "s3"] = "auto"
    task_result_directory: Path | None = None
    task_result_bucket: Annotated[str, Field(pattern=r"^s3://[^/?#@]+(/[^?#@]*)?$")] | None = None
    max_task_result_bytes: Annotated[int, Field(ge=1, le=512 * MIB)] = 256 * MIB
    max_stored_result_bytes: Annotated[int, Field(ge=1)] = 10 * 1024 * MIB
    upload_timeout_seconds: Seconds = 60
    request_timeout_seconds: Seconds = 30
    task_result_days: Annotated[float, Field(gt=0, le=36_500)] = 7
    publish_timeout_seconds: Seconds = 5
    max_queued_events: Annotated[int, Field(ge=1)] = 10_000
    max_queued_event_bytes: Annotated[int, Field(ge=1)] = 16 * MIB
    event_retention_seconds: Annotated[float, Field(ge=1, le=604_800)] = 900
    max_room_events: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    max_room_event_bytes: Annotated[int, Field(ge=MIB)] = 16 * MIB
    max_watched_rooms: Annotated[int, Field(ge=1)] = 10_000
    max_streams: Annotated[int, Field(ge=0)] = 10_000
    max_streams_per_user: Annotated[int, Field(ge=0)] = 2000
    max_downloads: Annotated[int, Field(ge=1)] = 4000
    max_sockets: Annotated[int, Field(ge=1)] = 10_000
    stream_send_timeout_seconds: Seconds = 30
    database_connect_timeout_seconds: Seconds = 5
    database_response_timeout_seconds: Seconds = 10
    database_statement_timeout_seconds: Seconds = 30
    database_lock_timeout_seconds: Seconds = 5
    database_idle_transaction_timeout_seconds: Seconds = 10
    on_end_timeout_seconds: Seconds = 60
    on_end_max_attempts: Annotated[int, Field(ge=1, le=1000)] = 20
    webhook_timeout_seconds: Annotated[float, Field(gt=0, le=120)] = 15
    webhook_concurrency: Annotated[int, Field(ge=1, le=1000)] = 20
    webhook_http: bool = False
    webhook_ports: PortList = Field(default_factory=lambda: ["80", "443", "8080", "8443"], min_length=1)
    webhook_networks: NetworkList = Field(default_factory=list)
    max_webhooks: Annotated[int, Field(ge=1)] = 100_000
    max_webhooks_per_room: Annotated[int, Field(ge=1)] = 100
    max_waiting_deliveries: Annotated[int, Field(ge=1)] = 100_000
    build: Annotated[str, Field(max_length=64)] | None = None
    metrics_token: SecretStr | None = Field(default=None, min_length=16)
    trusted_origins: WordList = Field(default_factory=list)
    redis_url: RedisUrl | None = None
    # The length is not in the pattern: pydantic would compile a copy of the class for each character, 12 MiB.
    redis_prefix: Annotated[str, Field(pattern=r"^[\w.:-]+$", max_length=128)] = "zndraw-joblib"

    @model_validator(mode="before")
    @classmethod
    def _resolve_aliases(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for other, own in ALIASES.items():
                if data.get(other) is not None:
                    data.setdefault(own, data[other])
        return data

    @model_validator(mode="after")
    def _check_results(self) -> Self:
        if self.provider_result_backend == "redis" and self.redis_url is None:
            raise ValueError(
                "provider_result_backend is 'redis', which needs redis_url: set ZNDRAW_JOBLIB_REDIS_URL"
            )
        if self.task_result_backend == "redis" and self.redis_url is None:
            raise ValueError(
                "task_result_backend is 'redis', which needs redis_url: set ZNDRAW_JOBLIB_REDIS_URL"
            )
        if self.task_result_backend == "files" and self.task_result_directory is None:
            raise ValueError(
                "task_result_backend is 'files', which needs task_result_directory: set "
                "ZNDRAW_JOBLIB_TASK_RESULT_DIRECTORY"
            )
        if self.task_result_backend == "s3" and self.task_result_bucket is None:
            raise ValueError(
                "task_result_backend is 's3', which needs task_result_bucket, like s3://bucket/prefix: set "
                "ZNDRAW_JOBLIB_TASK_RESULT_BUCKET"
            )
        return self

    def keeps_unserved_jobs(self) -> bool:
        """Return whether a job stays without workers if its policy has no `without_workers`."""
        return self.without_workers != WithoutWorkers.FORGET

    def keep_days(self, status: str) -> float | None:
        """Return for how many days ended tasks of a status are kept; None for ever."""
        name = f"keep_{status}_days"
        of_all = None if name in self.model_fields_set else self.keep_finished_days
        return of_all or getattr(self, name) or None

    @property
    def keeps_by_default(self) -> bool:
        """Whether tasks are deleted after the default times, which no operator has set."""
        names = {"keep_completed_days", "keep_failed_days", "keep_cancelled_days"} - self.model_fields_set
        return self.keep_finished_days is None and any(getattr(self, name) for name in names)

    def share_of(self, limit: int) -> int:
        """Return how much of a limit one user may have, at least 1."""
        return max(1, int(limit * self.max_share_per_user))

    def share_of_setting(self, name: str) -> int:
        """Return how much of the limit in a setting one user may have, at least 1."""
        return self.share_of(getattr(self, name))

    @property
    def heartbeat_seconds(self) -> float:
        """The heartbeat interval of workers: by default a quarter of the timeout, so three may get lost."""
        return self.heartbeat_interval_seconds or self.worker_timeout_seconds / HEARTBEATS_PER_TIMEOUT

    @property
    def unnamed_task_seconds(self) -> float | None:
        """Return for how long a living worker may omit a task that it holds: by default three heartbeats."""
        if self.unnamed_task_timeout_seconds is None:
            return UNNAMED_HEARTBEATS * self.heartbeat_seconds
        return self.unnamed_task_timeout_seconds or None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read arguments first, then the environment, then the pyproject.toml of the working directory."""
        pyproject = PyprojectTomlConfigSettingsSource(settings_cls)
        return init_settings, _Environment(settings_cls), pyproject


class OidcClaims(BaseModel):
    """Which claims of a provider's tokens say who the user is, and what the user may do.

    A claim is named, or reached by a path as ``realm_access.roles``. Each value of the claim `roles` is the
    name of a role or scope, or what `role_names` makes of it; `default_roles` are those of every user. The
    claim `rooms` has the user's rooms; without this setting users have all rooms.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    user: ClaimName = "sub"
    roles: ClaimName | None = None
    role_names: dict[str, RoleNames] = Field(default_factory=dict, max_length=1000)
    default_roles: RoleNames = []
    rooms: ClaimName | None = None


class OidcLogin(BaseModel):
    """How the page logs users in: as a public client of the provider, by authorization code with PKCE.

    `parameters` are added to the request for the code, as ``{"resource": "https://queue.example.com"}``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    client_id: Annotated[str, Field(min_length=1, max_length=2000)]
    scope: Annotated[str, Field(max_length=2000)] = "openid profile"
    parameters: dict[str, Annotated[str, Field(max_length=2000)]] = Field(default_factory=dict, max_length=20)


class ServerSettings(JobLibSettings):
    """Settings of the standalone server."""

    keep_completed_days: KeepDays | None = 30
    keep_failed_days: KeepDays | None = 90
    keep_cancelled_days: KeepDays | None = 30
    database_url: str = DEFAULT_DATABASE_URL
    admin_token: SecretStr | None = None
    oidc_issuer: Annotated[str, Field(max_length=2000)] | None = None
    oidc_audience: WordList = Field(default_factory=list)
    oidc_claims: OidcClaims = Field(default_factory=OidcClaims)
    oidc_login: OidcLogin | None = None
    cors_origins: WordList = Field(default_factory=list)
    dashboard: Literal["on", "read-only", "off"] = "on"
    socketio_transports: Transports = Field(["polling", "websocket"], min_length=1)
    socket_auth_timeout_seconds: Seconds = 10
    max_unauthenticated_sockets: Annotated[int, Field(ge=1)] = 1000
    processes: Annotated[int, Field(ge=1, le=MAX_PROCESSES)] = 1
    workers: Annotated[int, Field(ge=1, le=MAX_PROCESSES)] | None = None
    internal_extensions: WordList = Field(default_factory=list)
    internal_concurrency: Annotated[int, Field(ge=1, le=1000)] = 4

    @model_validator(mode="after")
    def _check(self) -> "ServerSettings":
        if self.admin_token is not None and len(self.admin_token.get_secret_value()) < MIN_TOKEN_LENGTH:
            raise ValueError(f"admin_token must have at least {MIN_TOKEN_LENGTH} characters")
        _check_oidc(self)
        if self.task_result_backend == "memory" and self.processes > 1:
            raise ValueError(
                "task_result_backend is 'memory', which only one process can read: choose 'database', or set "
                "processes=1"
            )
        return self


MIN_TOKEN_LENGTH = 16


def is_safe_url(value: str) -> bool:
    """Return whether a URL is of https, or of http on this machine."""
    try:
        parts = urlsplit(value)
        host = parts.hostname or ""
    except ValueError:
        return False
    is_local = host in {"localhost", "127.0.0.1", "::1"}
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_local))


def _check_oidc(settings: ServerSettings) -> None:
    if settings.oidc_issuer is None:
        if settings.oidc_audience or settings.oidc_login:
            raise ValueError("oidc_audience and oidc_login need oidc_issuer: set the URL of the provider")
        return
    if not is_safe_url(settings.oidc_issuer) or urlsplit(settings.oidc_issuer).query:
        raise ValueError("oidc_issuer must be a URL that begins with https:// (http:// only on this machine)")
    if not settings.oidc_audience:
        raise ValueError(
            "oidc_audience is empty: set the audience that the provider writes into tokens for this server, "
            "or tokens for any other service would be accepted"
        )
    if settings.oidc_claims.roles is None and not settings.oidc_claims.default_roles:
        raise ValueError(
            "oidc_claims gives no user a role: set roles to the claim that has them, or default_roles, as in "
            """'{"roles": "groups", "default_roles": ["viewer"]}'"""
        )
    if importlib.util.find_spec("joserfc") is None:
        raise ValueError("oidc_issuer needs a library: pip install 'zndraw-joblib[oidc]'")


# The settings in force: the value and the source of each one, what it means, and misspelt variables.

HIDDEN = "***"
_URLS = frozenset({"database_url", "redis_url"})
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_ROW = re.compile(r"\| `(\w+)` \| .*? \| (.*) \|")


def report(settings: JobLibSettings) -> Settings:
    """Return all settings in the order of their class, without secrets."""
    fields = type(settings).model_fields
    values = settings.model_dump(mode="json")
    sources = _sources(settings)
    entries = []
    for name, field in fields.items():
        if name in ALIASES:
            continue
        default = field.get_default(call_default_factory=True)
        is_secret = isinstance(getattr(settings, name), SecretStr) or "SecretStr" in str(field.annotation)
        entry = SettingEntry(
            name=name,
            value=None if is_secret else _shown(name, values[name]),
            default=None if is_secret else _shown(name, default),
            source=sources[name],
            is_secret=is_secret,
            description=descriptions().get(name, ""),
        )
        entries.append(entry)
    unknown = unknown_variables({*fields, *ServerSettings.model_fields})
    return Settings(settings=entries, unknown=[describe(*names) for names in unknown.items()])


def without_password(url: str) -> str:
    """Return a URL in which `***` replaces the password and all values of its query that may be secret."""
    try:
        parts = urlsplit(url)
        before, at, host = parts.netloc.rpartition("@")
        user, colon, _ = before.partition(":")
        netloc = f"{user}{colon}{HIDDEN if colon else ''}{at}{host}"
        params = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return HIDDEN
    # A password may have a `/`, `?` or `#` that is not escaped; then it is in another part.
    if "@" in parts.path + parts.query + parts.fragment:
        return f"{parts.scheme}://{HIDDEN}"
    query = urlencode([(name, HIDDEN if _is_secret(name) else value) for name, value in params], safe="*/:")
    return f"{parts.scheme}://{netloc}{parts.path}{'?' if query else ''}{query}"


@cache
def descriptions() -> dict[str, str]:
    """Return what each setting means: the reference of the settings has it in its tables."""
    rows = [_ROW.fullmatch(line) for line in reference().read_text(encoding="utf-8").splitlines()]
    return {row[1]: _LINK.sub(r"\1", row[2]) for row in rows if row}


def reference() -> Path:
    """Return the file of the reference: in the installed package, or in the repository."""
    here = Path(__file__).resolve().parent
    installed = here / "settings.md"
    return installed if installed.is_file() else here.parents[3] / "docs" / "reference" / "settings.md"


def _is_secret(name: str) -> bool:
    return any(word in name.lower() for word in ("pass", "secret", "token", "key"))


def _shown(name: str, value: Any) -> Any:
    if name in _URLS and isinstance(value, str):
        return without_password(value)
    return str(value) if isinstance(value, Path) else value


def _sources(settings: JobLibSettings) -> dict[str, str]:
    """Return where the value of each setting is from.

    A value that differs from that of new settings was an argument, or was changed since.
    """
    kind = type(settings)
    try:
        new: JobLibSettings | None = kind()
        in_file = set(PyprojectTomlConfigSettingsSource(kind)())
    except (ValueError, OSError):
        new, in_file = None, set()
    variables = {name.upper().removeprefix(PREFIX).lower() for name in os.environ if _is_variable(name)}
    return {
        name: "argument"
        if new is None or getattr(new, name) != getattr(settings, name)
        else _source(name, variables, in_file)
        for name in kind.model_fields
    }


def _is_variable(name: str) -> bool:
    return name.upper().startswith(PREFIX)


def _source(name: str, variables: Collection[str], in_file: Collection[str]) -> str:
    names = {name, *[alias for alias, own in ALIASES.items() if own == name]}
    if not names.isdisjoint(variables):
        return "environment"
    return "default" if names.isdisjoint(in_file) else "file"
