"""Every look at a test split that benchmarks take, kept in MLflow between runs. Knows openings;
independent of what is measured.
"""

import argparse
import re
from pathlib import Path

from benchmarks.measurement import print_table
from rlhf_pipeline.core.config import silence_telemetry
from rlhf_pipeline.feedback.votes import Opening
from rlhf_pipeline.registry import Registry, opening_recorder

# ignored by git, and no home
REGISTRY_FOLDER = Path(__file__).with_name("registry")
PROJECT = "benchmarks"
HASH = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{28,}")  # told by its first digits; MLflow has them all


def add_registry_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--registry",
        type=Path,
        default=REGISTRY_FOLDER,
        help=f"folder of the MLflow registry of openings; default {REGISTRY_FOLDER}",
    )


def format_commit(commit: object) -> str:
    """Twelve digits of the commit, and whether it was changed."""
    name, _, changed = (
        str(commit).partition("-") if isinstance(commit, str) else ("no checkout", "", "")
    )
    return f"{name[:12]}{'-' if changed else ''}{changed}"


class OpeningLog:
    """What `record` of anything that opens a test split is: each opening is in MLflow before a pair
    is handed out.

    MLflow is loaded and migrated here, seconds that no clock of a benchmark is to count.
    """

    def __init__(self, folder: Path) -> None:
        silence_telemetry()
        folder.mkdir(parents=True, exist_ok=True)
        database = (folder / "mlflow.db").absolute()
        self.registry = Registry(f"sqlite:///{database}", database.with_name("artifacts"), PROJECT)
        self.registry.tracking.open()
        self._keep = opening_recorder(self.registry)
        self.own: list[Opening] = []

    def record(self, opening: Opening) -> None:
        self._keep(opening)
        self.own.append(opening)

    def print_openings(self) -> None:
        """This run's openings."""
        if not self.own:
            print("\nNo test split was opened.")
            return
        print_table(
            f"Openings of the test split: {len(self.own)}, kept in "
            f"{self.registry.tracking.tracking_uri}",
            ("opened", "for", "why", "pairs", "of hash", "code"),
            [
                (
                    f"{row.opened_at:%Y-%m-%d %H:%M:%S}",
                    HASH.sub(r"\1", row.model),
                    row.purpose,
                    row.n_pairs,
                    str(row.data_hash)[:12],
                    format_commit(row.commit),
                )
                for row in self.own
            ],
        )
