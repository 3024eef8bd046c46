"""Opens what commands share: settings, store, registry and champions of a project, each once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.store import Store, homes
from rlhf_pipeline.watch.telemetry.logs import configure_logs
from rlhf_pipeline.watch.telemetry.tracing import find_call_observer

if TYPE_CHECKING:  # a command that needs only the store does without pandas and models
    from rlhf_pipeline.core.artefacts import Artefacts
    from rlhf_pipeline.core.records import ModelVersion
    from rlhf_pipeline.learn.champions import Champions
    from rlhf_pipeline.registry import Registry


@dataclass(frozen=True)
class Workspace:
    """Everything below one RLHF_HOME."""

    settings: Settings

    @classmethod
    def open(cls) -> Workspace:
        """The home of the environment. Raises ConfigurationError where it was not initialised."""
        workspace = cls.from_environment()
        workspace.require_initialised()
        return workspace

    @classmethod
    def open_current(cls) -> Workspace:
        """Like `open`, for commands that need only the store: its tables are made."""
        workspace = cls.from_environment()
        workspace.store.migrate()
        return workspace

    @classmethod
    def from_environment(cls, *, initialising: bool = False) -> Workspace:
        """Like `open`, for commands that also work on a new home. Raises ConfigurationError for a
        home that lost a part.
        """
        return cls.from_settings(Settings.read(initialising=initialising))

    @classmethod
    def from_settings(cls, settings: Settings) -> Workspace:
        """`from_environment` for a command that changes settings first."""
        configure_logs(settings)
        homes.refuse_broken(settings)
        return cls(settings)

    @cached_property
    def store(self) -> Store:
        """Raises ConfigurationError where a server is set for a home on SQLite."""
        s = self.settings
        homes.refuse_other_server(s)
        store = Store.of_home(s)
        store.generation.observe_calls = find_call_observer(s)
        return store

    @cached_property
    def registry(self) -> Registry:
        from rlhf_pipeline.registry import Registry

        s = self.settings
        return Registry(s.tracking_uri, s.home / "mlflow" / "artifacts", s.project, ui=s.mlflow_ui)

    @cached_property
    def champions(self) -> Champions:
        from rlhf_pipeline.learn.champions import Champions
        from rlhf_pipeline.learn.champions.champions import register_first_policy

        def first_policy(champions: Champions) -> ModelVersion:
            return register_first_policy(champions, self.settings)

        return Champions(
            self.store,
            self.registry,
            self.settings.cache,
            self.settings.encoder,
            first_policy,
            self.settings.device,
            self.settings.dtype,
        )

    @cached_property
    def files(self) -> Artefacts:
        from rlhf_pipeline.core.artefacts import Artefacts

        return Artefacts(self.settings.frames)

    def require_initialised(self) -> None:
        if not (self.settings.home / "dagster" / "dagster.yaml").exists():
            raise ConfigurationError(
                f"{self.settings.home} holds no project yet. Run `rlhf init` (or `make demo`) "
                "first, or set RLHF_HOME."
            )


def application_file(name: str) -> Path:
    """A file of the Dagster application that ships with this package: `workspace.yaml`, or the
    template of `dagster.yaml`.
    """
    return Path(__file__).parents[1] / "application" / name
