"""Where things are, and which code this is. The one reader of the environment; how things are
computed stands beside each algorithm.
"""

import functools
import gc
import json
import logging
import os
import re
import secrets
import subprocess
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import SplitResult, parse_qs, urlencode, urlsplit, urlunsplit

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from rlhf_pipeline.documents import parse_yaml
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.files import write_atomically

ENV_PREFIX = "RLHF_"
HOME_FACTS = "project.json"
RESTORING = "RESTORING"  # a file that lies in a home from the first to the last step of a restore
CONFIG = "rlhf.yaml"
# said in every URL: a bare postgresql:// means another driver from SQLAlchemy 2.1 on
DRIVER = "postgresql+psycopg2"
# Options of libpq by which connections to an unreachable server end within seconds.
CONNECTION_OPTIONS = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
LOCAL_SCHEMES = {"", "sqlite", "file"}  # what follows is a path, in which any sign may stand
FILE_SETTINGS = ("api_key_file", "prompts_file")  # relative ones in rlhf.yaml are relative to it
# Dagster and MLflow put the path into an SQLite URL as it is: /x/q?1 and /x/q?2 would be one file,
# /x/a%20b another folder
UNUSABLE_CHARACTERS = "%?"
# what dagster.yaml of a home on Postgres reads: Dagster's UI shows that file, not the variable
DAGSTER_URL = "RLHF_DAGSTER_URL"

# Every library that reports home is told not to, before it is imported.
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


class HomeFacts(BaseModel):
    """What a home knows of itself, whoever opens it: its name among homes, its one project, its
    first day, where its databases are.

    Dagster's partitions and history below a home belong to one project, so a home holds one.
    Written by `rlhf init` and by imports of older days; a setting that contradicts it is refused,
    one that is given beside it wins.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    organization: str
    project: str
    home_id: str | None = Field(
        default=None,
        pattern=r"^[0-9a-f]+$",
        description="random; marks the home's databases on a server; None for a home of before "
        "there were such ids",
    )
    start_day: date | None = Field(
        default=None,
        description="first day of an import, where it lies before the setting's default",
    )
    server_url: SecretStr | None = Field(
        default=None, description="Postgres server that holds the home's databases"
    )
    database_prefix: str | None = Field(default=None, description="of their names on that server")
    config: Path | None = Field(
        default=None,
        description="rlhf.yaml that every process of the home reads; None where there was none",
    )
    home: Path | None = Field(
        default=None,
        description="where a home on a server lies: a copy would write into the same databases",
    )
    has_models: bool = Field(
        default=False,
        description="a first policy was registered, so MLflow's database must be there",
    )

    @classmethod
    def load(cls, home: Path) -> Self | None:
        """None for a home nobody made yet. Raises ConfigurationError for a file that is none."""
        path = home / HOME_FACTS
        try:
            return cls.model_validate_json(path.read_bytes()) if path.exists() else None
        except ValidationError as cause:
            # What was read is not repeated: it may hold the server's password.
            problems = "; ".join(
                f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}"
                for e in cause.errors(include_input=False)
            )
            raise ConfigurationError(
                f"{path} cannot be read as the facts of a home: {problems}. Restore it, or name "
                "another home."
            ) from None
        except OSError as cause:
            raise ConfigurationError(
                f"{path} cannot be read: {cause.strerror or cause}. Make it readable, or name "
                "another home."
            ) from cause

    def with_id(self) -> Self:
        """With an id, where it had none."""
        return self if self.home_id else self.model_copy(update={"home_id": secrets.token_hex(8)})

    def write(self, home: Path) -> None:
        """Whole or not at all; readable by its owner alone, because the server's URL may hold a
        password.
        """
        plain = self.model_dump(mode="json", exclude_none=True)
        if self.server_url is not None:
            plain["server_url"] = self.server_url.get_secret_value()
        write_atomically(home / HOME_FACTS, (json.dumps(plain, indent=1) + "\n").encode())
        (home / HOME_FACTS).chmod(0o600)


class Settings(BaseModel):
    """Read once, by `definitions.py` and the command line; frozen. `RLHF_HOME=/data rlhf init` sets
    `home`.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False
    )

    home: Path = Field(default=Path("var"), description="All state lives below this folder")
    config: Path | None = Field(
        default=None,
        description="Settings file; empty = the one that `rlhf init` recorded, else `rlhf.yaml` in "
        "the working directory",
    )
    organization: str = Field(
        default="default", description="Owner of the project's rows", min_length=1
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
        description="First daily partition (UTC)",
    )
    annotators: Literal["human", "simulated"] = Field(
        default="human", description="Who votes; `simulated` adds the simulated_voting job"
    )
    scenario: str = Field(
        default="taste_change", description="Simulation scenario, where annotators are simulated"
    )
    sensors_running: bool = Field(default=True, description="Sensors and schedules start RUNNING")
    completion_backend: str = Field(
        default="local",
        description="What completes prompts: local, openai_compatible, anthropic, template, or an "
        "installed one",
    )
    policy: str | None = Field(
        default=None, description="Hub id or folder of a causal LM; empty = the embedded policy"
    )
    encoder: str | None = Field(
        default=None,
        description="Hub id or folder of the sentence encoder; empty = the offline package; "
        "`my/model,offline` goes on with it where the first is not there, and says so",
    )
    base_url: str = Field(
        default="http://127.0.0.1:8000/v1",
        description="Address of the provider; anthropic has its own",
    )
    api_key: SecretStr | None = Field(
        default=None, description="Key of the provider (openai_compatible, anthropic)"
    )
    api_key_file: Path | None = Field(
        default=None,
        description="File with that key alone, plain as secret stores mount it or sealed by `rlhf "
        "keys seal`; api_key wins",
    )
    sealing_key: SecretStr | None = Field(
        default=None, description="Opens a sealed key file; from `rlhf keys new`"
    )
    api_model: str = Field(default="gpt-4o-mini", description="The provider's name of the model")
    prompt_price: float | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="Of a million prompt tokens, for calls without a configuration of their own: "
        "written prompts, the stream",
    )
    completion_price: float | None = Field(
        default=None,
        ge=0,
        le=1_000_000,
        description="Of a million completion tokens, for the same calls",
    )
    budget_per_day: float | None = Field(
        default=None,
        ge=0,
        le=1_000_000_000,
        description="Most that the project may spend on a day (UTC), as the same calls see it; "
        "needs the two prices",
    )
    prompt_source: str = Field(
        default="templates",
        description="Where prompts come from: templates, dataset, freeform, or an installed one",
    )
    prompts_file: Path | None = Field(
        default=None,
        description="What that source reads; for dataset a JSONL, CSV or Parquet file of prompts",
    )
    server_url: SecretStr | None = Field(
        default=None,
        description="URL of a Postgres server for store, Dagster and MLflow, e.g. "
        "postgresql://user@host; empty = SQLite",
    )
    database_prefix: str = Field(
        default="rlhf",
        description="On that server: databases <prefix>_store, <prefix>_dagster, <prefix>_mlflow",
        pattern=r"^[a-z][a-z0-9_]*$",
    )
    database_url: SecretStr | None = Field(
        default=None, description="SQLAlchemy URL of the store; empty = SQLite under home"
    )
    mlflow_url: SecretStr | None = Field(
        default=None, description="MLflow tracking URI; empty = SQLite under home"
    )
    dagster_url: SecretStr | None = Field(
        default=None,
        description="SQLAlchemy URL of Dagster's storage, read by dagster.yaml; `rlhf` sets it "
        "from the server's URL",
    )
    mlflow_ui: str = Field(
        default="http://127.0.0.1:5000",
        description="Address of MLflow's UI, for links from Dagster",
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
        default=15,
        ge=0,
        le=527_040,
        description="Minutes without a new vote after which it is requested anyway",
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
        description="New ones before it is refitted without a detected change",
    )
    retry_after_pairs: int = Field(
        default=50,
        ge=1,
        le=1_000_000_000,
        description="New ones before the next try, after a reward model was refused or a fit "
        "lacked data",
    )
    executor: Literal["in_process", "multiprocess"] = Field(
        default="in_process",
        description="Where the steps of a run are executed: in the run's own process, or each in "
        "one of its own",
    )
    max_concurrent_steps: int = Field(
        default=2,
        ge=1,
        le=256,
        description="Steps of one run at the same time, where each has a process",
    )
    step_retries: int = Field(
        default=2,
        ge=0,
        le=10,
        description="How often a step whose process was killed is started again in its run",
    )
    max_concurrent_runs: int = Field(
        default=4,
        ge=1,
        le=1000,
        description="Runs at the same time; `rlhf init` and `rlhf dev` write it into Dagster's "
        "home",
    )
    sensor_seconds: int = Field(
        default=10,
        ge=1,
        le=86_400,
        description="Least time between two ticks of the sensors `votes` and `retraining`",
    )
    slow_sensor_seconds: int = Field(
        default=60,
        ge=1,
        le=86_400,
        description="Least time between two ticks of the other sensors; each tick costs 0.1 s of "
        "CPU",
    )
    heartbeat_seconds: float = Field(
        default=5, gt=0, le=3600, description="Between two heartbeats of a run"
    )
    dead_after_seconds: float = Field(
        default=60,
        gt=0,
        le=604_800,
        description="Silence after which a run counts as killed; at least two heartbeats",
    )
    web_url: str = Field(
        default="http://127.0.0.1:8080",
        description="Where people reach the web app: in login links; its host is served beside "
        "loopback, https makes cookies secure",
        pattern=r"^https?://[^/\s?#@]+/?$",
    )
    keep_days: int = Field(
        default=90,
        ge=1,
        le=36_500,
        description="Days that ended runs are kept, with their events and logs, and files of "
        "trainings",
    )
    keep_tick_days: int = Field(
        default=30,
        ge=1,
        le=36_500,
        description="Days that ticks of sensors and schedules are kept; `rlhf init` writes it into "
        "Dagster's home too",
    )
    keep_skipped_tick_days: int = Field(
        default=2, ge=1, le=36_500, description="The same for ticks that asked for nothing"
    )
    keep_report_days: int = Field(
        default=365,
        ge=1,
        le=36_500,
        description="Days that pages of drift and windows of calibration are kept",
    )
    keep_cache_days: int = Field(
        default=180,
        ge=1,
        le=36_500,
        description="Days that cached completions are kept after their last use, and embeddings "
        "after they were made",
    )
    keep_model_versions: int = Field(
        default=10,
        ge=1,
        le=1_000_000,
        description="Newest versions of each model that never were champion and keep their files",
    )

    @field_validator("dead_after_seconds")
    @classmethod
    def _check_dead_after(cls, seconds: float, info: ValidationInfo) -> float:
        heartbeat = info.data.get("heartbeat_seconds", 0.0)
        if seconds < 2 * heartbeat:
            raise ValueError(
                f"must be at least two heartbeats (heartbeat_seconds is {heartbeat:g}): every "
                "living run would be failed"
            )
        return seconds

    @field_validator("server_url")
    @classmethod
    def _check_server_url(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            build_database_url(url, "")
        return url

    @field_validator("database_url", "mlflow_url", "dagster_url")
    @classmethod
    def _check_url(cls, url: SecretStr | None) -> SecretStr | None:
        plain = url.get_secret_value() if url is not None else ""
        if "://" in plain and plain.partition(":")[0].partition("+")[0] not in LOCAL_SCHEMES:
            split_url(plain)
        return url

    @property
    def store_url(self) -> str:
        return (
            _reveal(self.database_url)
            or self._build_server_url("store")
            or f"sqlite:///{self.home / 'store.db'}"
        )

    @property
    def tracking_uri(self) -> str:
        return (
            _reveal(self.mlflow_url)
            or self._build_server_url("mlflow", CONNECTION_OPTIONS)
            or f"sqlite:///{self.home / 'mlflow' / 'mlflow.db'}"
        )

    @property
    def dagster_storage(self) -> str | None:
        """URL of Dagster's database; None where it keeps SQLite files under home."""
        return _reveal(self.dagster_url) or self._build_server_url("dagster", CONNECTION_OPTIONS)

    @property
    def dagster_environ(self) -> dict[str, str]:
        """What a process needs in its environment before it opens this home's Dagster instance."""
        storage = {} if self.dagster_storage is None else {DAGSTER_URL: self.dagster_storage}
        return {"DAGSTER_HOME": str(self.home / "dagster"), **storage}

    @property
    def environ(self) -> dict[str, str]:
        """Environment of a process that works on this home, whatever its working directory."""
        config = {} if self.config is None else {f"{ENV_PREFIX}CONFIG": str(self.config)}
        return {f"{ENV_PREFIX}HOME": str(self.home), **config, **self.dagster_environ}

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that give another process these settings, secrets included."""
        given = {name: getattr(self, name) for name in self.model_fields_set | {"home"}}
        plain = {
            name: _reveal(value) if isinstance(value, SecretStr) else value
            for name, value in given.items()
        }
        return {
            f"{ENV_PREFIX}{name.upper()}": str(value)
            for name, value in plain.items()
            if value is not None
        }

    def _build_server_url(self, what: str, options: Mapping[str, int] | None = None) -> str | None:
        return (
            None
            if self.server_url is None
            else build_database_url(self.server_url, f"{self.database_prefix}_{what}", options)
        )

    @property
    def web_hosts(self) -> tuple[str, ...]:
        """Names under which the web app answers, beside loopback."""
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
    def demo_state(self) -> Path:
        """How far the demo came. A home that holds it is the demo's: its annotators are
        simulated.
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
        """Settings from a file, overridden by RLHF_* in `environ`.

        The file is the one that RLHF_CONFIG names, else the one that the home recorded, else
        `rlhf.yaml` in `folder` (default: the working directory). Raises ConfigurationError for an
        unknown key, with the known ones; for a value of the wrong type; for a file that is no YAML
        mapping; for an `rlhf.yaml` that an initialised home has not recorded, unless
        `initialising`; for a recorded file that is gone, unless `restoring`.
        """
        environ = os.environ if environ is None else environ
        folder = Path.cwd() if folder is None else folder
        given = {
            key.removeprefix(ENV_PREFIX).lower(): value
            for key, value in environ.items()
            if key.startswith(ENV_PREFIX) and value != ""
        }
        named = given.pop("config", None)
        config = (
            _resolve_named_config(folder, named)
            if named is not None
            else _existing_path(folder / CONFIG)
        )
        values = _read_yaml(config)
        home = _resolve_home(
            str(given.get("home", values.get("home", cls.model_fields["home"].default))), folder
        )
        facts = HomeFacts.load(home)
        is_lost = facts is not None and facts.config is not None and not facts.config.is_file()
        if named is None and facts is not None and not (restoring and is_lost):
            config = _resolve_recorded_config(home, facts, config, initialising=initialising)
            values = _read_yaml(config)
        values = _merge_facts(values | given, facts, home)
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


def _existing_path(path: Path) -> Path | None:
    return path.absolute() if path.exists() else None


def _resolve_named_config(folder: Path, named: str) -> Path:
    path = (folder / Path(named).expanduser()).absolute()
    if not path.is_file():
        raise ConfigurationError(
            f"RLHF_CONFIG names {path}, which is not a file. Correct it, or unset it."
        )
    return path


def _resolve_recorded_config(
    home: Path, facts: HomeFacts, beside: Path | None, *, initialising: bool
) -> Path | None:
    """The file that the home recorded. `beside`, the one in the working directory, is read by `rlhf
    init` alone, where none is recorded.
    """
    if facts.config is None:
        if beside is not None and not initialising:
            raise ConfigurationError(
                f"{home} does not know {beside}, so its other processes would not read it. Run "
                f"`rlhf init` in {beside.parent} to record it, or work in another folder."
            )
        return beside
    if not facts.config.is_file():
        raise ConfigurationError(
            f"{facts.config}, the settings of {home}, is gone. Put it back (an empty file means "
            "every default), or record another one: RLHF_CONFIG=FILE rlhf init."
        )
    if beside is not None and not beside.samefile(facts.config):
        _log_once(
            f"{home} reads its settings from {facts.config}, not from {beside}. "
            f"RLHF_CONFIG={beside} rlhf init changes that."
        )
    return facts.config


@functools.cache
def _log_once(sentence: str) -> None:
    logging.getLogger(__name__).warning(sentence)


def _resolve_home(named: str, folder: Path) -> Path:
    try:
        home = (folder / Path(named).expanduser()).absolute()
    except RuntimeError:
        raise ConfigurationError(
            f"RLHF_HOME {named} names the home of an unknown user. Write the whole path."
        ) from None
    found = [sign for sign in UNUSABLE_CHARACTERS if sign in str(home)]
    if found:
        raise ConfigurationError(
            f"RLHF_HOME {home} contains {found[0]!r}, which has a meaning in the URLs of "
            f"databases. Name a folder without {' and '.join(UNUSABLE_CHARACTERS)} in its path."
        )
    return home


def _describe_problems(refusal: ValidationError) -> str:
    """Each setting with what is expected, and its value where that cannot be a secret: of numbers,
    dates, switches and words to choose from.
    """
    said = []
    for error in refusal.errors():
        name = str(error["loc"][0]) if error["loc"] else "settings"
        field = Settings.model_fields.get(name)
        is_open = field is not None and not any(
            kind in str(field.annotation) for kind in ("str", "Secret", "Path")
        )
        value = (
            f", not {error['input']!r}; correct {ENV_PREFIX}{name.upper()}, or {name} in rlhf.yaml"
            if is_open
            else ""
        )
        said.append(f"{name}: {error['msg']}{value}")
    return "; ".join(said)


def _merge_facts(values: dict[str, Any], facts: HomeFacts | None, home: Path) -> dict[str, Any]:
    """`values` and, where they are silent, what the home knows. Raises ConfigurationError for
    another project's home.
    """
    if facts is None:
        return values
    for name in ("organization", "project"):
        if name in values and values[name] != getattr(facts, name):
            raise ConfigurationError(
                f"{home} holds {name} {getattr(facts, name)!r}, not {values[name]!r}. A home holds "
                "one project: set RLHF_HOME to another folder."
            )
    known = {"organization": facts.organization, "project": facts.project}
    if facts.start_day is not None:
        known["start_day"] = str(min(facts.start_day, Settings.model_fields["start_day"].default))
    if facts.server_url is not None:
        known["server_url"] = facts.server_url.get_secret_value()
    if facts.database_prefix is not None:
        known["database_prefix"] = facts.database_prefix
    return known | values


def _reveal(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


def build_database_url(
    server_url: SecretStr, database: str, options: Mapping[str, int] | None = None
) -> str:
    """The URL of one database of a server, with its driver and with the options that it does not
    set itself.

    Raises ValueError, without the password, for no Postgres URL.

    >>> server_url = SecretStr("postgres://ann@db:5433/postgres?sslmode=require")
    >>> build_database_url(server_url, "rlhf_store")
    'postgresql+psycopg2://ann@db:5433/rlhf_store?sslmode=require'
    """
    url = server_url.get_secret_value()
    # without the slashes it may be a name, or a password
    scheme = url.partition(":")[0] if "://" in url else ""
    if scheme not in ("postgresql", "postgres", DRIVER):
        raise ValueError(
            f"begins with {scheme + ':' if scheme else 'no scheme'}; write "
            "postgresql://user:password@host:port"
        )
    parts = split_url(url)
    if not parts.netloc and not parts.query:
        raise ValueError("names no host; write postgresql://user:password@host:port")
    missing = {
        name: value for name, value in (options or {}).items() if name not in parse_qs(parts.query)
    }
    query = "&".join(part for part in (parts.query, urlencode(missing)) if part)
    return urlunsplit((DRIVER, parts.netloc or "@", f"/{database}", query, ""))


def split_url(url: str) -> SplitResult:
    """A server's URL in its parts. Raises ValueError, which repeats nothing of it, where it would
    be read otherwise than it was meant.

    A sign with a meaning of its own ends name, password or host where it stands, so that the rest
    of the password would be taken for a host, a port, a path or nothing, and be shown as such.

    >>> split_url("postgresql://ann:a%2Fb@db:5433/x").hostname
    'db'
    """
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  what is no number was part of a password, perhaps
        is_whole = (
            url.partition("://")[2].count("@") == parts.netloc.count("@") <= 1 and "#" not in url
        )
    except ValueError:
        is_whole = False
    if not is_whole or any(sign.isspace() or not sign.isprintable() for sign in url):
        raise ValueError(
            "cannot be read as scheme://user:password@host:port. Percent-encode what user and "
            "password hold of @ (%40), / (%2F), ? (%3F), # (%23), [ (%5B), ] (%5D) and blanks "
            "(%20); the port is a number."
        ) from None
    if any("password" in key.lower() for key in parse_qs(parts.query)):
        raise ValueError(
            "says a password behind the question mark, where it would be shown. Write "
            "user:password@ before the host; that of a key (sslpassword) belongs into a service "
            "file (?service=name, PGSERVICEFILE)."
        )
    return parts


def silence_telemetry() -> None:
    """Tell every library not to report home. Called first by each entry point, before heavy
    imports.
    """
    for key, value in TELEMETRY_OFF.items():
        os.environ.setdefault(key, value)


def share_cores() -> None:
    """Let threads that wait for work sleep. Called first by whatever trains or embeds, before torch
    is imported.

    By default they spin: two runs on the same cores then take each other's, and fitting takes twice
    as long and the CPU three times.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def collect_garbage_rarely() -> None:
    """Called early by each entry point.

    A million imported objects live as long as the process; by default Python looks through them so
    often that a noticeable part of the CPU of an import or a run goes there.
    """
    gc.set_threshold(50_000, 20, 100)


@functools.cache
def code_commit() -> str | None:
    """Git commit of the checkout this code runs from, with `-dirty` when it has changes; None
    outside one.
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
        told = subprocess.run(
            describe,
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return told.stdout.strip() or None


# what PyYAML quotes of a file; '<scalar>' and single signs are its own
_NAMES = re.compile(r"""\"[^"]{2,}"|'(?!<)[^']{2,}'""")


def _hide_value(name: re.Match[str]) -> str:
    return name[0] if name[0][1:-1] in Settings.model_fields else "…"


def _read_yaml(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        values = parse_yaml(path.read_text(encoding="utf-8")) or {}
    except yaml.MarkedYAMLError as cause:
        # Neither the line nor a name in it is repeated, here or as a cause: they may be a password
        # or a key.
        mark = cause.problem_mark or cause.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigurationError(
            f"{path} is not readable YAML: "
            f"{_NAMES.sub(_hide_value, cause.problem or 'it breaks off')}{place}. Correct it, or "
            "put the value in single quotes."
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as cause:
        raise ConfigurationError(
            f"{path} is not readable YAML: {cause}. Write it as UTF-8 without control characters."
        ) from None
    if not isinstance(values, dict):
        raise ConfigurationError(
            f"{path} must hold `setting: value` lines, not a {type(values).__name__}."
        )
    if "config" in values:
        raise ConfigurationError(
            f"{path} sets `config`, which names this very file. Remove the line, or set "
            "RLHF_CONFIG instead."
        )
    beside = {
        name: str(path.parent / str(values[name]))
        for name in ("home", *FILE_SETTINGS)
        if values.get(name)
    }
    return dict(values) | {
        name: value for name, value in beside.items() if not str(values[name]).startswith("~")
    }
