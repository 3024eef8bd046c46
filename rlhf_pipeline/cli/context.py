"""What commands share: settings, store, registry and champions of this project, opened once."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.champions import Champions
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.store import Store


@dataclass(frozen=True)
class Workspace:
    """Everything below one RLHF_HOME."""

    settings: Settings

    @classmethod
    def here(cls) -> "Workspace":
        return cls(Settings.read())

    @cached_property
    def store(self) -> Store:
        s = self.settings
        return Store.open(s.store_url, organization=s.organization, project=s.project)

    @cached_property
    def registry(self) -> Registry:
        s = self.settings
        return Registry(s.tracking_uri, s.home / "mlflow" / "artifacts", s.project, ui=s.mlflow_ui)

    @cached_property
    def champions(self) -> Champions:
        return Champions(self.store, self.registry, self.settings.cache, self.settings.encoder)

    @cached_property
    def files(self) -> Artefacts:
        return Artefacts(self.settings.frames)

    def require_initialised(self) -> None:
        if not (self.settings.home / "dagster" / "dagster.yaml").exists():
            raise ConfigurationError(
                f"{self.settings.home} holds no project yet. Run `rlhf init` (or `make demo`) first, or set RLHF_HOME."
            )


def checkout() -> Path:
    """The folder with definitions.py: the working directory, or the checkout this package was installed from."""
    for folder in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (folder / "definitions.py").exists() and (folder / "workspace.yaml").exists():
            return folder
    raise ConfigurationError(
        "The Dagster application (definitions.py, workspace.yaml) is not here. Run this inside a checkout of the repository."
    )
