"""Where things are. The one reader of the environment; how things are computed stands beside each algorithm."""

import os
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from rlhf_pipeline.errors import ConfigurationError

ENV_PREFIX = "RLHF_"

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


class Settings(BaseModel):
    """Read once, by `definitions.py` and the command line; frozen. `RLHF_HOME=/data rlhf init` sets `home`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    home: Path = Field(default=Path("var"), description="All state lives below this folder")
    organization: str = Field(default="default", description="Owner of the project's rows", min_length=1)
    project: str = Field(default="demo", description="The one project this code location serves", pattern=r"^[a-z0-9_-]+$")
    start_day: date = Field(default=date(2026, 1, 1), description="First daily partition (UTC)")
    annotators: Literal["human", "simulated"] = Field(default="human", description="Who votes; `simulated` adds the simulated_voting job")
    scenario: str = Field(default="taste_change", description="Simulation scenario, where annotators are simulated")
    sensors_running: bool = Field(default=True, description="Sensors and schedules start RUNNING")
    completion_backend: str = Field(
        default="local", description="What completes prompts: local, openai_compatible, template, or an installed one"
    )
    policy: str | None = Field(default=None, description="Hub id or folder of a causal LM; empty = the embedded policy")
    encoder: str | None = Field(default=None, description="Hub id or folder of the sentence encoder; empty = the offline package")
    base_url: str = Field(default="http://127.0.0.1:8000/v1", description="Of the openai_compatible backend")
    api_key: SecretStr | None = Field(default=None, description="Of the openai_compatible backend")
    api_model: str = Field(default="gpt-4o-mini", description="Model name sent to the openai_compatible backend")
    prompt_source: str = Field(
        default="templates", description="Where prompts come from: templates, dataset, freeform, or an installed one"
    )
    prompts_file: Path | None = Field(
        default=None, description="What that source reads; for dataset a JSONL, CSV or Parquet file of prompts"
    )
    database_url: str | None = Field(default=None, description="SQLAlchemy URL of the store; empty = SQLite under home")
    mlflow_url: str | None = Field(default=None, description="MLflow tracking URI; empty = SQLite under home")
    mlflow_ui: str = Field(default="http://127.0.0.1:5000", description="Address of MLflow's UI, for links from Dagster")
    frames_url: str | None = Field(default=None, description="fsspec URL of the frames; empty = a folder under home")
    votes_per_request: int = Field(default=50, ge=1, description="New votes of a day after which its feedback run is requested")
    quiet_minutes: float = Field(default=15, ge=0, description="Minutes without a new vote after which it is requested anyway")
    min_new_pairs: int = Field(default=350, ge=10, description="Voted comparisons before the first reward model is fitted")
    refit_after_pairs: int = Field(default=5000, ge=10, description="New ones before it is refitted without a detected change")
    sensor_seconds: int = Field(default=10, ge=1, description="Least time between two ticks of a sensor")
    heartbeat_seconds: float = Field(default=5, gt=0, description="Between two heartbeats of a run")
    dead_after_seconds: float = Field(default=60, gt=0, description="Silence after which a run counts as killed")
    keep_days: int = Field(default=90, ge=1, description="Runs older than this are purged, with their events; ticks go by dagster.yaml")

    @property
    def store_url(self) -> str:
        return self.database_url or f"sqlite:///{self.home / 'store.db'}"

    @property
    def tracking_uri(self) -> str:
        return self.mlflow_url or f"sqlite:///{self.home / 'mlflow' / 'mlflow.db'}"

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
        """How far the demo came. A home that holds it is the demo's: its annotators are simulated."""
        return self.home / "demo_state.json"

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None, folder: Path | None = None) -> Self:
        """Settings from `rlhf.yaml` in `folder` (default: the working directory), overridden by RLHF_* in `environ`.

        Raises ConfigurationError for an unknown key, with the known ones; for a value of the wrong type; for a file
        that is no YAML mapping.
        """
        environ = os.environ if environ is None else environ
        folder = Path.cwd() if folder is None else folder
        values = _yaml_values(folder / "rlhf.yaml")
        for key, value in environ.items():
            name = key.removeprefix(ENV_PREFIX).lower()
            if key.startswith(ENV_PREFIX) and value != "":
                values[name] = value
        unknown = sorted(set(values) - set(cls.model_fields))
        if unknown:
            raise ConfigurationError(f"Unknown settings {unknown}. Known: {', '.join(sorted(cls.model_fields))}.")
        try:
            settings = cls(**values)
        except ValidationError as cause:
            problems = "; ".join(f"{e['loc'][0] if e['loc'] else 'settings'}: {e['msg']}" for e in cause.errors())
            raise ConfigurationError(f"Settings cannot be used: {problems}.") from cause
        return settings.model_copy(update={"home": (folder / settings.home).absolute()})


def silence_telemetry() -> None:
    """Tell every library not to report home. Called first by each entry point, before heavy imports."""
    for key, value in TELEMETRY_OFF.items():
        os.environ.setdefault(key, value)


def _yaml_values(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as cause:
        raise ConfigurationError(f"{path} is not readable YAML: {cause}") from cause
    if not isinstance(values, dict):
        raise ConfigurationError(f"{path} must hold `setting: value` lines, not a {type(values).__name__}.")
    return dict(values)
