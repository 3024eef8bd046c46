"""What the demo keeps between two calls: the last day it finished, the day it collected, its
sensors' cursors. Knows no run.
"""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.files import write_atomically


class DemoState(BaseModel):
    """Days are ISO dates. Files cannot say how far the demo came: a daemon on the same home reports
    days of its own.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    finished: str | None = Field(default=None, description="Last day of which everything was run")
    collected: str | None = Field(
        default=None,
        description="Last day whose collection succeeded; beyond `finished`, it was cut short",
    )
    cursors: dict[str, str] = Field(
        default_factory=dict, description="By sensor; moved once everything it asked for succeeded"
    )

    @classmethod
    def read(cls, path: Path) -> Self:
        """The state in `path`, or a new one. Raises ConfigurationError for a file that is none."""
        try:
            return cls.model_validate_json(path.read_bytes()) if path.exists() else cls()
        except ValidationError as cause:
            raise ConfigurationError(
                f"{path} is no state of a demo: {cause.errors()[0]['msg']}. `make demo-clean` "
                "starts over."
            ) from cause

    def write(self, path: Path) -> None:
        """Whole or not at all."""
        write_atomically(path, self.model_dump_json(indent=2).encode())
