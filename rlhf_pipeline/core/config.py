"""Reads the settings of a home from the environment, `rlhf.yaml` and `project.json`.

Only this module reads the environment. Parameters of algorithms are defined beside them.
"""

import functools
import gc
import json
import logging
import os
import re
import subprocess
from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import SplitResult, parse_qs, urlencode, urlsplit, urlunsplit

import yaml
from filelock import FileLock
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from rlhf_pipeline.core.alert_targets import AlertTarget, parse_targets, resolve_files
from rlhf_pipeline.core.documents import parse_yaml
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.files import write_atomically
from rlhf_pipeline.core.parameters import Device, Dtype

ENV_PREFIX = "RLHF_"
# Variables that every program with OpenTelemetry reads; ours go first.
OTEL_VARIABLES = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "otlp_endpoint",
    "OTEL_EXPORTER_OTLP_HEADERS": "otlp_headers",
}
HOME_FACTS = "project.json"
RESTORING = "RESTORING"  # file that exists in a home while a restore is in progress
CONFIG = "rlhf.yaml"
LOOP = "loop"  # the section of that file which `loop_settings` reads
# Explicit in every URL: from SQLAlchemy 2.1 on, a bare postgresql:// selects another driver.
DRIVER = "postgresql+psycopg2"
BARE_SCHEMES = ("postgresql", "postgres")
# libpq options that end connections to an unreachable server within seconds
CONNECTION_OPTIONS = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
# `file`: rlhf.yaml; `home`: what `rlhf init` or an import recorded in project.json.
SettingSource = Literal["default", "environment", "file", "home", "program"]
LOCAL_SCHEMES = {"", "sqlite", "file"}  # the rest is a path, which may contain any character
MLFLOW_SCHEMES = ("sqlite:", "postgresql", "http:", "https:", "databricks")
# relative ones in rlhf.yaml are relative to it, in the environment to the working directory
FILE_SETTINGS = ("api_key_file", "prompts_file", "evaluation_file")
# Dagster and MLflow put the path into an SQLite URL unescaped: /x/q?1 and /x/q?2 would be one file,
# /x/a%20b another folder.
UNUSABLE_CHARACTERS = "%?"
# Variable that dagster.yaml of a home on Postgres reads: Dagster's UI shows that file but not the
# variable's value.
DAGSTER_URL = "RLHF_DAGSTER_URL"

# Set before the libraries are imported, so that none sends telemetry.
TELEMETRY_OFF = {
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "ANONYMIZED_TELEMETRY": "False",
    "GX_ANALYTICS_ENABLED": "False",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
# MLflow's own limits let a call to an unreachable server block for minutes.
MLFLOW_PATIENCE = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",  # seconds
}


ServedState = Literal["as judged", "other precision", "differs", "not checkable"]


class ServedCheck(BaseModel):
    """The latest comparison of what serves with the judged version. `difference` and `tolerance`
    are in nats, of one token, or by setting of the median.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str
    checked_at: datetime
    state: ServedState
    reason: str
    difference: float | None = None
    tolerance: float | None = None
    n_requests: int = 0
    rolled_back: bool = False


class HomeFacts(BaseModel):
    """Facts recorded in a home (`project.json`): its project, first day, databases and progress.

    A home holds one project, because Dagster's partitions and history below it belong to one. `rlhf
    init` and imports of older days write the file. A setting for another project is refused; other
    settings override the file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    project: str
    start_day: date | None = Field(
        default=None,
        description="day of `rlhf init`, or of the earliest import",
    )
    server_url: SecretStr | None = Field(
        default=None, description="Postgres server that holds the home's databases"
    )
    database_prefix: str | None = Field(
        default=None, description="prefix of the database names on that server"
    )
    config: Path | None = Field(
        default=None,
        description="rlhf.yaml that every process of the home reads; None if there is none",
    )
    has_models: bool = Field(
        default=False,
        description="a first policy was registered, so MLflow's database must exist",
    )
    policy: Literal["none yet"] | None = Field(
        default=None, description="`none yet` until the first policy is registered"
    )
    policy_notices: dict[str, tuple[str, ...]] = Field(
        default={}, description="of policies registered from outside, by name@version"
    )
    served: ServedCheck | None = Field(
        default=None, description="whether what serves is the judged version, as checked last"
    )
    audit_seq: int = Field(
        default=0,
        ge=0,
        description="last link of the audit chain when a run or server ended: a store that ends "
        "before it lost rows",
    )

    @classmethod
    def of(cls, settings: "Settings") -> Self:
        """The facts of a new home."""
        return cls(project=settings.project)

    @classmethod
    def load(cls, home: Path) -> Self | None:
        """The facts of `home`, or None before `rlhf init`. Raises ConfigurationError for an invalid
        file.
        """
        path = home / HOME_FACTS
        try:
            return cls.model_validate_json(path.read_bytes()) if path.exists() else None
        except ValidationError as cause:
            # The message must not repeat the content: it may hold the server's password.
            problems = "; ".join(
                f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}"
                for e in cause.errors(include_input=False)
            )
            raise ConfigurationError(
                f"{path} is invalid: {problems}. Restore it, or use another home."
            ) from None
        except OSError as cause:
            raise ConfigurationError(
                f"{path} cannot be read: {cause.strerror or cause}. Make it readable, or use "
                "another home."
            ) from cause

    @classmethod
    def change(cls, home: Path, **changed: Any) -> None:
        """Change recorded facts of an initialised home."""
        with FileLock(home / f"{HOME_FACTS}.lock"):
            facts = cls.load(home)
            if facts is None:
                raise ConfigurationError(f"{home} is no home yet. Make it with `rlhf init`.")
            new_facts = facts.model_copy(update=changed)
            if new_facts != facts:
                new_facts.write(home)

    @classmethod
    def raise_audit_seq(cls, home: Path, seq: int) -> None:
        """Record `seq` unless a higher one is recorded, or nothing: before `rlhf init`."""
        with FileLock(home / f"{HOME_FACTS}.lock"):
            facts = cls.load(home)
            if facts is not None and seq > facts.audit_seq:
                facts.model_copy(update={"audit_seq": seq}).write(home)

    def write(self, home: Path) -> None:
        """Write the file atomically, readable only by its owner because the server's URL may hold a
        password.
        """
        plain = self.model_dump(mode="json", exclude_none=True)
        if self.server_url is not None:
            plain["server_url"] = self.server_url.get_secret_value()
        write_atomically(home / HOME_FACTS, (json.dumps(plain, indent=1) + "\n").encode())
        (home / HOME_FACTS).chmod(0o600)


class RetentionParams(BaseModel):
    """Section `retention:` of rlhf.yaml: what the job `housekeeping` keeps, in days."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_days: int = Field(
        default=90, ge=1, le=36_500, description="Ended runs with their events and logs"
    )
    tick_days: int = Field(
        default=30,
        ge=1,
        le=36_500,
        description="Ticks of sensors and schedules; `rlhf init` writes it into Dagster's home",
    )
    skipped_tick_days: int = Field(
        default=2, ge=1, le=36_500, description="Ticks that requested no run"
    )
    message_days: int = Field(
        default=90,
        ge=1,
        le=36_500,
        description="Messages about alerts after their delivery; given-up ones are kept",
    )
    checkpoint_days: int = Field(
        default=90,
        ge=1,
        le=36_500,
        description="Files of trainings, and retraining sets of no kept policy",
    )
    cache_days: int = Field(
        default=180,
        ge=1,
        le=36_500,
        description="Cached completions after their last use, embeddings after their creation",
    )
    answer_days: int = Field(
        default=90,
        ge=1,
        le=36_500,
        description="Log of served answers, with their texts if these are kept",
    )
    model_versions: int = Field(
        default=10,
        ge=1,
        le=1_000_000,
        description="Number of newest versions of each model that keep their files without ever "
        "having been champion",
    )


class ServingParams(BaseModel):
    """Section `serving:` of rlhf.yaml: how the deployed version answers chats."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    keep_texts: bool = Field(
        default=False,
        description="Keep prompts and answers in the log, so that feedback on an answer's id needs "
        "no texts; annotators then see drawn requests of an experiment",
    )
    max_tokens: int = Field(
        default=1024,
        ge=1,
        description="Tokens after which an answer ends whose request sets no limit; on this "
        "machine it ends where the policy's context is full, if that is earlier",
    )
    tolerance: float | None = Field(
        default=None,
        gt=0,
        le=100,
        description="Median difference of tokens' log probabilities, in nats, by which a server in "
        "another precision may differ from the judged version; null = each token by three times "
        "the largest difference of 20 clean reloads",
    )
    roll_back: bool = Field(
        default=False,
        description="Deploy the previous version when what serves differs from the judged one",
    )


class RequestParameters(BaseModel):
    """An entry of `request_parameters:` in rlhf.yaml: how requests for one model differ.

    >>> RequestParameters(rename={"seed": "random_seed"}, omit=["top_p"]).apply({"seed": 1})
    {'random_seed': 1}
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rename: dict[str, str] = Field(default={}, description="Parameters by the names of this model")
    omit: tuple[str, ...] = Field(default=(), description="Parameters that it refuses")
    add: dict[str, Any] = Field(default={}, description="Parameters that it gets beside ours")

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        changed = {"model", "messages"} & {
            *self.rename,
            *self.rename.values(),
            *self.omit,
            *self.add,
        }
        if changed:
            raise ValueError(f"{sorted(changed)} cannot be changed: every request needs them")
        return self

    def apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body of a request for this model."""
        fields = {self.rename.get(name, name): body[name] for name in body if name not in self.omit}
        return fields | self.add

    def describe_cure(self, model: str, name: str, other_name: str | None) -> str:
        """The setting to write where the model refuses a parameter, or wants another name."""
        own_name = {new: old for old, new in self.rename.items()}.get(name, name)
        change = self.model_dump(exclude_defaults=True)
        if other_name is None:
            change["omit"] = [*self.omit, own_name]
        else:
            change["rename"] = self.rename | {own_name: other_name}
        setting = json.dumps({model: change})
        return f"Write into rlhf.yaml `request_parameters: {setting}`"


class Settings(BaseSettings):
    """Settings of one home; frozen. Each field is also an environment variable: RLHF_HOME sets
    `home`. Only `read` looks at the environment; a constructor takes what it is given.
    """

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        allow_inf_nan=False,
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
    )

    home: Path = Field(default=Path("var"), description="Folder that holds all state")
    config: Path | None = Field(
        default=None,
        description="Settings file; empty = the file recorded by `rlhf init`, else `rlhf.yaml` in "
        "the working directory",
    )
    project: str = Field(
        default="demo",
        description="The one project this code location serves",
        pattern=r"^[a-z0-9_-]+$",
    )
    start_day: date = Field(
        default=date(2026, 1, 1),
        ge=date(1970, 1, 1),
        le=date(2099, 12, 31),
        description="First daily partition (UTC); `rlhf init` records its own day for a new home, "
        "the default is the demo's",
    )
    annotators: Literal["human", "simulated"] = Field(
        default="human", description="Kind of annotators; `simulated` adds the simulated_voting job"
    )
    sensors_running: bool = Field(
        default=True, description="Start sensors and schedules in state RUNNING"
    )
    completion_backend: str = Field(
        default="local",
        description="Backend that generates completions: local, openai_compatible, anthropic, "
        "template, or an installed one",
    )
    policy: str | None = Field(
        default=None, description="Hub id or folder of a causal LM; empty = the embedded policy"
    )
    device: Device = Field(
        default="auto",
        description="Where policies generate and score: cpu, cuda, cuda:1; auto = the first GPU "
        "where there is one",
    )
    dtype: Dtype = Field(
        default="auto",
        description="Number format they compute in: float32 or bfloat16; auto = bfloat16 on a GPU "
        "that has it",
    )
    encoder: str | None = Field(
        default=None,
        description="Hub id or folder of the sentence encoder; empty = the offline package; "
        "comma-separated fallbacks are tried in order (`my/model,offline`), and the one used is "
        "recorded with the model",
    )
    base_url: str = Field(
        default="http://127.0.0.1:8000/v1",
        description="Base URL of the openai_compatible provider",
    )
    api_key: SecretStr | None = Field(
        default=None, description="API key of the provider (openai_compatible, anthropic)"
    )
    api_key_file: Path | None = Field(
        default=None,
        description="File that holds only that key, in plain text or sealed by `rlhf keys seal`; "
        "api_key takes precedence",
    )
    sealing_key: SecretStr | None = Field(
        default=None, description="Key that opens a sealed key file; create it with `rlhf keys new`"
    )
    api_model: str = Field(default="gpt-4o-mini", description="Model name at the provider")
    request_parameters: dict[str, RequestParameters] = Field(
        default={},
        description="Parameters that requests for a model rename, omit or add, by its name: "
        '`{"gpt-5-mini": {"omit": ["temperature"]}}` (docs/guides/completions.md); in the '
        "environment as JSON",
    )
    load_adapters: bool = Field(
        default=False,
        description="The server is a vLLM that holds the first policy: it loads the LoRA adapter "
        "of each promoted one, and completes with it",
    )
    prompt_source: str = Field(
        default="templates",
        description="Source of the prompts; `rlhf prompts sources` lists them",
    )
    prompts_file: Path | None = Field(
        default=None,
        description="File that the source reads; for dataset a JSONL, CSV or Parquet file of "
        "prompts",
    )
    evaluation_file: Path | None = Field(
        default=None,
        description="File of prompts on which policies are compared; empty = a share of the "
        "prompt source, frozen before the first collection",
    )
    server_url: SecretStr | None = Field(
        default=None,
        description="URL of a Postgres server for store, Dagster and MLflow, e.g. "
        "postgresql://user@host; empty = SQLite",
    )
    database_prefix: str = Field(
        default="rlhf",
        description="Prefix of the databases on that server: <prefix>_store, <prefix>_dagster, "
        "<prefix>_mlflow",
        pattern=r"^[a-z][a-z0-9_]*$",
    )
    database_url: SecretStr | None = Field(
        default=None, description="SQLAlchemy URL of the store; empty = SQLite under home"
    )
    mlflow_url: SecretStr | None = Field(
        default=None, description="MLflow tracking URI; empty = SQLite under home"
    )
    mlflow_ui: str = Field(
        default="http://127.0.0.1:5000",
        description="Address of MLflow's UI, for links from Dagster, and port of `rlhf dev`",
    )
    dagster_ui: str = Field(
        default="http://127.0.0.1:3000",
        description="Address of Dagster's UI, for links from MLflow, and port of `rlhf dev`",
    )
    frames_url: str | None = Field(
        default=None, description="fsspec URL of the frames; empty = a folder under home"
    )
    votes_per_request: int = Field(
        default=50,
        ge=1,
        le=1_000_000_000,
        description="New votes of a day after which its feedback run is requested",
    )
    quiet_minutes: float = Field(
        default=1,
        ge=0,
        le=527_040,
        description="Minutes without a new vote after which the feedback run is requested anyway",
    )
    min_new_pairs: int = Field(
        default=350,
        ge=10,
        le=1_000_000_000,
        description="Voted comparisons before the first reward model is fitted",
    )
    refit_after_pairs: int = Field(
        default=5000,
        ge=10,
        le=1_000_000_000,
        description="New voted comparisons before it is refitted without a detected change",
    )
    max_concurrent_runs: int = Field(
        default=4,
        ge=1,
        le=1000,
        description="Concurrent runs; `rlhf init` and `rlhf dev` write it into Dagster's home",
    )
    sensor_seconds: int = Field(
        default=10,
        ge=1,
        le=86_400,
        description="Minimum seconds between two ticks of the sensors `votes` and `retraining`; of "
        "the others six times as many, because each takes 0.1 s of CPU",
    )
    dead_after_seconds: float = Field(
        default=60,
        gt=0,
        le=604_800,
        description="Seconds without a heartbeat after which a run counts as killed; it sends one "
        "in each twelfth of them",
    )
    web_url: str = Field(
        default="http://127.0.0.1:8080",
        description="Public address of the web app, for login links and alerts; its host is "
        "accepted beside loopback, and https makes cookies secure",
        pattern=r"^https?://[^/\s?#@]+/?$",
    )
    log_level: Literal["debug", "info", "warning", "error"] | None = Field(
        default=None,
        description="Least severe log lines that are written; empty = warning; for runs, all "
        "levels",
    )
    otlp_endpoint: str | None = Field(
        default=None,
        description="Address of a collector that receives traces by OTLP over HTTP, without its "
        "/v1/traces; also OTEL_EXPORTER_OTLP_ENDPOINT; empty = no traces",
        pattern=r"^https?://[^\s?#@]+$",
    )
    otlp_headers: SecretStr | None = Field(
        default=None,
        description="Headers sent to it, such as `Authorization=Basic%20…,x-project=demo`; also "
        "OTEL_EXPORTER_OTLP_HEADERS",
    )
    alert_targets: tuple[AlertTarget, ...] = Field(
        default=(),
        description="Where alerts are sent beside the log: names with their settings, in the "
        "environment as JSON (docs/guides/alerts.md)",
    )
    serving: ServingParams = Field(
        default=ServingParams(),
        description="How the deployed version answers chats (docs/guides/production.md); in the "
        "environment as JSON, or RLHF_SERVING__KEEP_TEXTS=true",
    )
    retention: RetentionParams = Field(
        default=RetentionParams(),
        description="How long the job `housekeeping` keeps what can be made again "
        "(docs/guides/retention.md); in the environment as JSON, or RLHF_RETENTION__RUN_DAYS=30",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)

    def __hash__(self) -> int:
        """Without `request_parameters`, whose values may be any JSON."""
        return hash((self.home, self.project, self.database_url, self.base_url, self.api_model))

    @field_validator("alert_targets", mode="before")
    @classmethod
    def _parse_targets(cls, value: Any) -> tuple[AlertTarget, ...]:
        return parse_targets(value)

    @field_validator("frames_url")
    @classmethod
    def _check_frames_url(cls, url: str | None) -> str | None:
        scheme, is_url, _ = (url or "").rpartition("::")[2].partition("://")
        if is_url:
            # only where frames are remote
            from fsspec import available_protocols  # type: ignore[import-untyped]

            if scheme not in available_protocols():
                raise ValueError(
                    f"begins with {scheme}:, which fsspec does not know: write a folder, or a URL "
                    "such as s3://bucket/folder"
                )
        return url

    @field_validator("otlp_headers")
    @classmethod
    def _check_headers(cls, headers: SecretStr | None) -> SecretStr | None:
        parts = headers.get_secret_value().split(",") if headers else []
        if any("=" not in part for part in parts):
            raise ValueError("must be name=value pairs, separated by commas")
        return headers

    @field_validator("server_url")
    @classmethod
    def _check_server_url(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            build_database_url(url, "")
        return url

    @field_validator("database_url", "mlflow_url")
    @classmethod
    def _check_url(cls, url: SecretStr | None) -> SecretStr | None:
        plain = url.get_secret_value() if url is not None else ""
        if "://" in plain and plain.partition(":")[0].partition("+")[0] not in LOCAL_SCHEMES:
            split_url(plain)
        return url

    @field_validator("mlflow_url")
    @classmethod
    def _check_mlflow_url(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None and not url.get_secret_value().startswith(MLFLOW_SCHEMES):
            raise ValueError(
                "names nothing that MLflow can use: write http://HOST:PORT of a tracking server, "
                "or sqlite:///PATH or postgresql://… of a database"
            )
        return url

    @property
    def store_url(self) -> str:
        return (
            _with_driver(self.database_url)
            or self._build_server_url("store")
            or f"sqlite:///{self.home / 'store.db'}"
        )

    @property
    def tracking_uri(self) -> str:
        return (
            _with_driver(self.mlflow_url)
            or self._build_server_url("mlflow", CONNECTION_OPTIONS)
            or f"sqlite:///{self.home / 'mlflow' / 'mlflow.db'}"
        )

    @property
    def dagster_storage(self) -> str | None:
        """URL of Dagster's database; None if Dagster uses SQLite files under home."""
        return self._build_server_url("dagster", CONNECTION_OPTIONS)

    @property
    def dagster_environ(self) -> dict[str, str]:
        """Environment variables a process needs before it opens this home's Dagster instance."""
        storage = {} if self.dagster_storage is None else {DAGSTER_URL: self.dagster_storage}
        return {"DAGSTER_HOME": str(self.home / "dagster"), **storage}

    @property
    def environ(self) -> dict[str, str]:
        """Environment variables that make a process use this home from any working directory."""
        config = {} if self.config is None else {f"{ENV_PREFIX}CONFIG": str(self.config)}
        files = {
            variable: str(getattr(self, name))
            for name in FILE_SETTINGS
            if (variable := f"{ENV_PREFIX}{name.upper()}") in os.environ
        }
        return {f"{ENV_PREFIX}HOME": str(self.home), **config, **files, **self.dagster_environ}

    def find_sources(self, environ: Mapping[str, str] | None = None) -> dict[str, SettingSource]:
        """Where the value of each setting comes from. One that neither environment nor files set
        any more was set when this process started, or by the program.

        Raises ConfigurationError for a settings file that became unreadable.
        """
        environ = os.environ if environ is None else environ
        from_environment = _read_environment(environ)
        in_file, facts = _read_settings(self.config), HomeFacts.load(self.home)
        recorded = set() if facts is None else facts.model_dump(exclude_none=True).keys()
        return {
            name: "default"
            if name not in self.model_fields_set
            else "environment"
            if name in from_environment
            else "file"
            if name in in_file
            else "home"
            if name in recorded
            else "program"
            for name in type(self).model_fields
        }

    def _build_server_url(self, what: str, options: Mapping[str, int] | None = None) -> str | None:
        return (
            None
            if self.server_url is None
            else build_database_url(self.server_url, f"{self.database_prefix}_{what}", options)
        )

    @property
    def slow_sensor_seconds(self) -> int:
        """Seconds between two ticks of the sensors that nobody waits for."""
        return 6 * self.sensor_seconds

    @property
    def heartbeat_seconds(self) -> float:
        """Seconds between two heartbeats: a run counts as killed only after missing many."""
        return self.dead_after_seconds / 12

    @property
    def web_hosts(self) -> tuple[str, ...]:
        """Host names that the web app accepts, beside loopback."""
        host = urlsplit(self.web_url).hostname or ""
        return (f"[{host}]" if ":" in host else host,)

    @property
    def frames(self) -> str:
        return self.frames_url or str(self.home / "frames")

    @property
    def models(self) -> Path:
        return self.home / "models"

    @property
    def cache(self) -> Path:
        return self.home / "cache"

    @property
    def exports(self) -> Path:
        return self.home / "exports"

    @property
    def reward_model(self) -> str:
        """Name of the project's reward model in the registry."""
        return f"{self.project}.reward_model"

    @property
    def demo_state(self) -> Path:
        """File with the demo's progress. A home with this file belongs to the demo: its annotators
        are simulated.
        """
        return self.home / "demo_state.json"

    @classmethod
    def read(
        cls,
        environ: Mapping[str, str] | None = None,
        folder: Path | None = None,
        *,
        initialising: bool = False,
        restoring: bool = False,
    ) -> Self:
        """Settings from a file, overridden by the RLHF_* variables in `environ`.

        The file is the one named by RLHF_CONFIG, else the one recorded by the home, else
        `rlhf.yaml` in `folder` (default: the working directory). Raises ConfigurationError for an
        unknown key, an invalid value, a file that is not a YAML mapping, an `rlhf.yaml` that an
        initialised home has not recorded (unless `initialising`), and a recorded file that is
        missing (unless `restoring`).
        """
        environ = os.environ if environ is None else environ
        folder = Path.cwd() if folder is None else folder
        from_environment = _read_environment(environ)
        from_environment |= {
            name: str((folder / Path(from_environment[name]).expanduser()).absolute())
            for name in FILE_SETTINGS
            if name in from_environment
        }
        config_path = from_environment.pop("config", None)
        config = (
            _resolve_named_config(folder, config_path)
            if config_path is not None
            else _existing_path(folder / CONFIG)
        )
        values = _read_settings(config)
        home = _resolve_home(
            str(from_environment.get("home", values.get("home", cls.model_fields["home"].default))),
            folder,
        )
        facts = HomeFacts.load(home)
        is_lost = facts is not None and facts.config is not None and not facts.config.is_file()
        if config_path is None and facts is not None and not (restoring and is_lost):
            config = _resolve_recorded_config(home, facts, config, initialising=initialising)
            values = _read_settings(config)
        retained = values.get("retention")
        if isinstance(retained, dict) and isinstance(from_environment.get("retention"), dict):
            from_environment["retention"] = retained | from_environment["retention"]
        values = _merge_facts(values | from_environment, facts, home)
        unknown = sorted(set(values) - set(cls.model_fields))
        if unknown:
            raise ConfigurationError(
                f"Unknown settings {unknown}. Known: {', '.join(sorted(cls.model_fields))}."
            )
        try:
            settings = cls(**values)
        except ValidationError as cause:
            raise ConfigurationError(
                f"Settings cannot be used: {_describe_problems(cause)}."
            ) from cause
        return settings.model_copy(
            update={"home": home} | ({} if config is None else {"config": config})
        )


class _Environment(EnvSettingsSource):
    """The variables of a mapping instead of those of this process."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        super().__init__(Settings)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name.lower(): value for name, value in self._environ.items() if value}


def _read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """The settings in RLHF_* variables, and unknown ones, which pydantic-settings would ignore."""
    otel_values = {name: environ[key] for key, name in OTEL_VARIABLES.items() if environ.get(key)}
    unknown = {
        name: value
        for key, value in environ.items()
        if key.startswith(ENV_PREFIX)
        and value
        and key != DAGSTER_URL
        and (name := key.removeprefix(ENV_PREFIX).lower()) not in Settings.model_fields
        and not name.startswith(("retention__", "serving__"))
    }
    try:
        return otel_values | unknown | _Environment(environ)()
    except SettingsError as cause:  # its cause quotes the value, which may hold a secret
        name = str(cause).split('"')[1]
        raise ConfigurationError(
            f"Settings cannot be used: {name}: {ENV_PREFIX}{name.upper()} must be a JSON object."
        ) from None


def _existing_path(path: Path) -> Path | None:
    return path.absolute() if path.exists() else None


def _resolve_named_config(folder: Path, config_path: str) -> Path:
    path = (folder / Path(config_path).expanduser()).absolute()
    if not path.is_file():
        raise ConfigurationError(
            f"RLHF_CONFIG is {path}, which is not a file. Correct it, or unset it."
        )
    return path


def _resolve_recorded_config(
    home: Path, facts: HomeFacts, beside: Path | None, *, initialising: bool
) -> Path | None:
    """The file that the home recorded. If none is recorded, only `rlhf init` reads `beside`, the
    file in the working directory.
    """
    if facts.config is None:
        if beside is not None and not initialising:
            raise ConfigurationError(
                f"{home} has not recorded {beside}, so other processes would not read it. Run "
                f"`rlhf init` in {beside.parent} to record it, or work in another folder."
            )
        return beside
    if not facts.config.is_file():
        raise ConfigurationError(
            f"{facts.config}, the settings file of {home}, is missing. Restore it (an empty file "
            "means defaults only), or record another one: RLHF_CONFIG=FILE rlhf init."
        )
    if beside is not None and not beside.samefile(facts.config):
        _log_once(
            f"{home} reads its settings from {facts.config}, not from {beside}. To change that, "
            f"run RLHF_CONFIG={beside} rlhf init."
        )
    return facts.config


@functools.cache
def _log_once(sentence: str) -> None:
    logging.getLogger(__name__).warning(sentence)


def _resolve_home(home_path: str, folder: Path) -> Path:
    try:
        home = (folder / Path(home_path).expanduser()).absolute()
    except RuntimeError:
        raise ConfigurationError(
            f"RLHF_HOME {home_path} refers to an unknown user. Write the full path."
        ) from None
    bad_signs = [sign for sign in UNUSABLE_CHARACTERS if sign in str(home)]
    if bad_signs:
        raise ConfigurationError(
            f"RLHF_HOME {home} contains {bad_signs[0]!r}, which is special in database URLs. "
            f"Choose a folder without {' and '.join(UNUSABLE_CHARACTERS)} in its path."
        )
    return home


# What a setting with a pattern expects, instead of the pattern
FORMS = {
    "project": "must consist of lower-case letters, digits, - and _",
    "database_prefix": "must be a lower-case letter, then lower-case letters, digits and _",
    "web_url": "must be an address such as https://votes.example.org, without path and user:@",
    "otlp_endpoint": "must be an address such as http://collector:4318, without user:@",
}


def _describe_problems(refusal: ValidationError) -> str:
    """Each invalid setting with the expected value. The given value is included only for types that
    cannot hold a secret: numbers, dates, switches and choices.
    """
    problems = []
    for error in refusal.errors():
        name = str(error["loc"][0]) if error["loc"] else "settings"
        field = Settings.model_fields.get(name)
        is_open = field is not None and not any(
            kind in str(field.annotation) for kind in ("str", "Secret", "Path", "Target")
        )
        value = f", not {error['input']!r}" if is_open else ""
        is_form = error["type"] == "string_pattern_mismatch" and name in FORMS
        expected = FORMS[name] if is_form else error["msg"].removeprefix("Value error, ")
        problems.append(
            f"{'.'.join(map(str, error['loc'])) or name}: {expected}{value}; correct "
            f"{ENV_PREFIX}{name.upper()}, or {name} in rlhf.yaml"
        )
    return ". ".join(problems)


def _merge_facts(values: dict[str, Any], facts: HomeFacts | None, home: Path) -> dict[str, Any]:
    """`values`, completed by the home's facts. Raises ConfigurationError if the home holds another
    project.
    """
    if facts is None:
        return values
    if values.get("project", facts.project) != facts.project:
        raise ConfigurationError(
            f"{home} holds project {facts.project!r}, not {values['project']!r}. A home holds one "
            "project; set RLHF_HOME to another folder."
        )
    recorded = {"project", "start_day", "server_url", "database_prefix"}
    return facts.model_dump(include=recorded, exclude_none=True) | values


def _with_driver(url: SecretStr | None) -> str | None:
    """A Postgres URL that names no driver, with ours; any other as it is."""
    plain = "" if url is None else url.get_secret_value()
    scheme, separator, rest = plain.partition("://")
    return f"{DRIVER}://{rest}" if separator and scheme in BARE_SCHEMES else plain or None


def build_database_url(
    server_url: SecretStr, database: str, options: Mapping[str, int] | None = None
) -> str:
    """The URL of one database on a server, with explicit driver and with those `options` that
    `server_url` does not set.

    Raises ValueError, without the password, if it is not a Postgres URL.

    >>> server_url = SecretStr("postgres://ann@db:5433/postgres?sslmode=require")
    >>> build_database_url(server_url, "rlhf_store")
    'postgresql+psycopg2://ann@db:5433/rlhf_store?sslmode=require'
    """
    url = server_url.get_secret_value()
    # without :// the prefix could be a name or a password
    scheme = url.partition(":")[0] if "://" in url else ""
    if scheme not in (*BARE_SCHEMES, DRIVER):
        raise ValueError(
            f"begins with {scheme + ':' if scheme else 'no scheme'}; write "
            "postgresql://user:password@host:port"
        )
    parts = split_url(url)
    if not parts.netloc and not parts.query:
        raise ValueError("has no host; write postgresql://user:password@host:port")
    missing = {
        name: value for name, value in (options or {}).items() if name not in parse_qs(parts.query)
    }
    query = "&".join(part for part in (parts.query, urlencode(missing)) if part)
    return urlunsplit((DRIVER, parts.netloc or "@", f"/{database}", query, ""))


def split_url(url: str) -> SplitResult:
    """The parts of a server's URL. Raises ValueError, which repeats nothing of the URL, if the URL
    is ambiguous.

    An unescaped special character ends the user, password or host, so the rest of a password would
    be read as host, port or path, and would be shown.

    >>> split_url("postgresql://ann:a%2Fb@db:5433/x").hostname
    'db'
    """
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  a port that is not a number may be part of a password
        is_whole = (
            url.partition("://")[2].count("@") == parts.netloc.count("@") <= 1 and "#" not in url
        )
    except ValueError:
        is_whole = False
    if not is_whole or any(sign.isspace() or not sign.isprintable() for sign in url):
        raise ValueError(
            "cannot be read as scheme://user:password@host:port. In user and password, "
            "percent-encode @ (%40), / (%2F), ? (%3F), # (%23), [ (%5B), ] (%5D) and spaces "
            "(%20); the port is a number."
        ) from None
    if any("password" in key.lower() for key in parse_qs(parts.query)):
        raise ValueError(
            "has a password in its query, where it would be shown. Write user:password@ before "
            "the host; put the password of a key (sslpassword) into a service file "
            "(?service=name, PGSERVICEFILE)."
        )
    return parts


def silence_telemetry() -> None:
    """Disable telemetry of all libraries, and bound MLflow's retries. Each entry point calls this
    first, before heavy imports.
    """
    for key, value in (TELEMETRY_OFF | MLFLOW_PATIENCE).items():
        os.environ.setdefault(key, value)


def extend_environ(**variables: str) -> dict[str, str]:
    """The environment for a program that reads a secret from a variable."""
    return {**os.environ, **variables}


def share_cores() -> None:
    """Let idle OpenMP threads sleep. Code that trains or embeds calls this before it imports torch.

    By default they spin: two runs on the same cores then slow each other down, so that fitting
    takes twice the time and three times the CPU.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def collect_garbage_rarely() -> None:
    """Raise the garbage collector's thresholds. Each entry point calls this early.

    A million imported objects live as long as the process; at the defaults, Python scans them so
    often that it costs a noticeable share of the CPU.
    """
    gc.set_threshold(50_000, 20, 100)


def project_folder() -> Path:
    """The folder whose `rlhf.yaml` Dagster's processes read: the working directory, but the
    checkout that this code runs from where only that is one.
    """
    folder, checkout = Path.cwd(), Path(__file__).parents[2]
    is_checkout = (checkout / "workspace.yaml").exists()
    return checkout if is_checkout and not (folder / CONFIG).exists() else folder


@functools.cache
def code_commit() -> str | None:
    """Git commit of the checkout that this code runs from, with `-dirty` if it has changes; None
    outside a checkout.
    """
    describe = (
        "git",
        "--no-optional-locks",
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    )
    try:
        described = subprocess.run(
            describe,
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return described.stdout.strip() or None


# Text that PyYAML quotes from the file; '<scalar>' and single characters are PyYAML's own.
_NAMES = re.compile(r"""\"[^"]{2,}"|'(?!<)[^']{2,}'""")


def _hide_value(name: re.Match[str]) -> str:
    return name[0] if name[0][1:-1] in Settings.model_fields else "…"


def _read_settings(path: Path | None) -> dict[str, Any]:
    """The settings in a file, without its section `loop`."""
    values = {} if path is None else read_settings_file(path)
    return {name: value for name, value in values.items() if name != LOOP}


def read_settings_file(path: Path) -> dict[str, Any]:
    """The content of a settings file, with paths made absolute. Raises ConfigurationError for a
    file that is not a YAML mapping.
    """
    try:
        values = parse_yaml(path.read_text(encoding="utf-8")) or {}
    except yaml.MarkedYAMLError as cause:
        # Neither the message nor its cause may repeat the line or a name in it: it may be a
        # password or a key.
        mark = cause.problem_mark or cause.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigurationError(
            f"{path} is not valid YAML: "
            f"{_NAMES.sub(_hide_value, cause.problem or 'it breaks off')}{place}. Correct it, or "
            "put the value in single quotes."
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as cause:
        raise ConfigurationError(
            f"{path} is not valid YAML: {cause}. Write it as UTF-8 without control characters."
        ) from None
    if not isinstance(values, dict):
        raise ConfigurationError(
            f"{path} must hold `setting: value` lines, not a {type(values).__name__}."
        )
    if "config" in values:
        raise ConfigurationError(
            f"{path} sets `config`, the path of this file itself. Remove the line, or set "
            "RLHF_CONFIG instead."
        )
    beside = {
        name: str(path.parent / str(values[name]))
        for name in ("home", *FILE_SETTINGS)
        if values.get(name)
    }
    if "alert_targets" in values:
        values |= {"alert_targets": resolve_files(values["alert_targets"], path.parent)}
    return dict(values) | {
        name: value for name, value in beside.items() if not str(values[name]).startswith("~")
    }
