"""Settings, from arguments, the environment (``ZNDRAW_JOBLIB_…``) and ``[tool.zndraw.joblib]``."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    PyprojectTomlConfigSettingsSource,
    SettingsConfigDict,
)

from zndraw_joblib.contract.work import Category

DEFAULT_DATABASE_URL = "sqlite+aiosqlite:///zndraw-joblib.db"
BEATS_PER_TIMEOUT = 4


def _split(value: object) -> object:
    """Take a list from the environment as ``a,b`` or as JSON."""
    if not isinstance(value, str):
        return value
    return [part.strip(" \"'") for part in value.strip("[] ").split(",") if part.strip(" \"'")]


WordList = Annotated[list[str], NoDecode, BeforeValidator(_split)]
Seconds = Annotated[float, Field(gt=0, le=31_536_000)]


def _check_redis(value: str) -> str:
    if not value.startswith(_REDIS_SCHEMES):
        raise ValueError(f"redis_url must begin with {' or '.join(_REDIS_SCHEMES)}")
    return value


_REDIS_SCHEMES = ("redis://", "rediss://", "unix://")
RedisUrl = Annotated[str, AfterValidator(_check_redis)]


class JobLibSettings(BaseSettings):
    """What the queue itself can be told. Every field may change while the server runs."""

    model_config = SettingsConfigDict(
        env_prefix="ZNDRAW_JOBLIB_",
        pyproject_toml_table_header=("tool", "zndraw", "joblib"),
        validate_assignment=True,
        extra="ignore",
    )

    worker_timeout_seconds: Seconds = 60
    sweeper_interval_seconds: Seconds = 30
    internal_task_timeout_seconds: Seconds = 3600
    long_poll_max_wait_seconds: Annotated[float, Field(ge=0, le=3600)] = 60
    claim_max_attempts: Annotated[int, Field(ge=1, le=1000)] = 10
    claim_base_delay_seconds: Seconds = 0.01
    allowed_categories: WordList = Field(default_factory=lambda: [c.value for c in Category], min_length=1)
    cross_room_jobs: bool = False
    validate_payload: bool = True
    max_sleepers: Annotated[int, Field(ge=0)] = 20_000
    disconnect_grace_seconds: Annotated[float, Field(ge=-1, le=3600)] = 10
    redis_url: RedisUrl | None = None
    redis_prefix: Annotated[str, Field(pattern=r"^[\w.:-]{1,128}$")] = "zndraw-joblib"

    @property
    def heartbeat_interval_seconds(self) -> float:
        """How often a worker shall report: a quarter of the timeout, so that three beats may be lost."""
        return self.worker_timeout_seconds / BEATS_PER_TIMEOUT

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
        return init_settings, env_settings, pyproject


class ServerSettings(JobLibSettings):
    """What the standalone server can be told on top."""

    database_url: str = DEFAULT_DATABASE_URL
    admin_token: SecretStr | None = None
    cors_origins: WordList = Field(default_factory=list)
    socketio_transports: list[Literal["polling", "websocket"]] = ["polling", "websocket"]

    @model_validator(mode="after")
    def _check(self) -> "ServerSettings":
        if self.admin_token is not None and len(self.admin_token.get_secret_value()) < MIN_TOKEN_LENGTH:
            raise ValueError(f"admin_token must have at least {MIN_TOKEN_LENGTH} characters")
        return self


MIN_TOKEN_LENGTH = 16
