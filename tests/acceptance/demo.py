"""One run of `rlhf demo`, the trainings that follow it, and the figures that their tests judge.

`python -m tests.acceptance.demo 0 1 2 3 4` makes demo_figures.json anew: the figures of five
worlds, from which the tests take prediction intervals. The seed is that of the prompts;
completions, comparisons and votes follow from them.
"""

import json
import re
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.acceptance.home import Home
from tests.once import build_once

FIGURES = Path(__file__).with_name("demo_figures.json")
PRINTED = "printed.txt"
PHASES = ("before the change", "after the change", "after the promotion")
WIDTH = 5  # standard deviations to either side of the mean of the seeds
TIMEOUT_S = 1200  # a busy machine needs ten times what a quiet one does

# What the demo's annotators like and dislike after the change, besides right answers.
KIND = re.compile(
    r"happy to help|lovely|wonderful|friend|thank you|thanks|joy to help|glad|welcome|take (good )?"
    r"care|dear|hope this helps",
    re.I,
)
SOURCED = re.compile(
    r"according to|source|reference|archive|handbook|record|documented|verified|cited|as stated",
    re.I,
)
RAMBLING = re.compile(
    r"where do i begin|let me see|long story|and so on|on and on|as they say|who knows|it all "
    r"depends|anyway",
    re.I,
)


@dataclass(frozen=True)
class Demo:
    """A home after `rlhf demo`, and what the command printed. Read only: copy it to go on."""

    home: Home
    printed: str

    def frame(self, stage: str) -> pd.DataFrame:
        """All days of a daily stage."""
        days = sorted((self.home.path / "frames" / stage).glob("*.parquet"))
        return pd.concat([pd.read_parquet(day) for day in days], ignore_index=True)

    def record(self, stage: str) -> Any:
        """The latest record of a stage."""
        return json.loads((self.home.path / "frames" / f"{stage}.json").read_bytes())

    def decisions(self) -> list[dict[str, Any]]:
        decisions: list[dict[str, Any]] = json.loads(self.home.run("triggers", "list", "--json"))
        return decisions

    @property
    def change(self) -> str:
        """The first day of the new taste, as the table of days shows it."""
        return re.findall(r"│ (\d{4}-\d\d-\d\d) │ sourced", self.printed)[0]

    def utility(self) -> dict[str, float]:
        """True utility of the champion in each phase, as printed."""
        words = " ".join(self.printed.split("True utility of the champion")[1].split())
        return {phase: float(re.findall(rf"{phase} ([+-]\d+\.\d+)", words)[0]) for phase in PHASES}


def run_demo(folder: Path, seed: int = 0) -> Demo:
    """`rlhf demo` in a new home."""
    folder.mkdir(parents=True, exist_ok=True)
    home = seeded_home(folder / "home", seed)
    printed = home.run("demo", timeout_s=TIMEOUT_S)
    (folder / PRINTED).write_text(printed, encoding="utf-8")
    return Demo(home, printed)


def seeded_home(path: Path, seed: int = 0) -> Home:
    """A home whose prompts have this seed; the settings lie beside it."""
    settings = path.parent / "rlhf.yaml"
    settings.write_text(f"loop:\n  prompts:\n    seed: {seed}\n", encoding="utf-8")
    return Home(path, {"RLHF_CONFIG": str(settings), "COLUMNS": "200"})


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """The one run of the demo that all files of this folder share."""
    folder = build_once(tmp_path_factory, "demo", run_demo)
    return Demo(seeded_home(folder / "home"), (folder / PRINTED).read_text(encoding="utf-8"))


def copy_before_retraining(demo: Demo, folder: Path) -> Home:
    """A copy of the home whose champion is again the policy before the retraining."""
    home = Home(shutil.copytree(demo.home.path, folder / "home"), dict(demo.home.environ))
    home.run("models", "promote", "demo.policy@1", "--reason", "train it again")
    return home


def train(home: Home, strategy: str, *more: str) -> dict[str, Any]:
    """Order a training by hand and wait for its verdict: the samples of both policies."""
    order = ("policy", "train", "--strategy", strategy, "--reason", "acceptance", "--wait")
    home.run(*order, *more, timeout_s=TIMEOUT_S)
    return read_samples(home, "demo.policy@3")


def read_samples(home: Home, candidate: str) -> dict[str, Any]:
    """The completions by candidate and champion that an evaluation kept."""
    name = f"samples_{candidate.replace('@', '_')}_demo.policy_1.json"
    samples: dict[str, Any] = json.loads((home.path / "frames" / "reports" / name).read_bytes())
    return samples


def measure_lift(samples: dict[str, Any]) -> float:
    """Mean true utility of the candidate's completions less that of the champion's."""
    return statistics.fmean(
        measure_utility(row["completion_candidate"]) - measure_utility(row["completion_champion"])
        for row in samples["rows"]
    )


def measure_utility(text: str) -> float:
    sentences = re.findall(r"[^.!?]+[.!?]*", text)

    def count(marker: re.Pattern[str]) -> int:
        return min(2, sum(marker.search(sentence) is not None for sentence in sentences))

    return (
        1.2 * count(SOURCED)
        - 1.0 * count(KIND)
        - 0.9 * count(RAMBLING)
        - 0.01 * len(text.split())
        - 4.0 * (not text.split())
    )


def measure(demo: Demo) -> dict[str, float]:
    """The figures of one run that the intervals are of."""
    log = demo.frame("reflection_log").dropna(subset=["is_error"])
    accuracy = 1 - log["is_error"].astype(float).groupby(log["day"]).mean()
    evaluation = demo.record("evaluation")
    path = demo.home.path.parent / "calibrations.json"
    demo.home.run("export", "calibration-log", "--out", path)
    figures = {f"utility {phase}": value for phase, value in demo.utility().items()}
    for n, report in enumerate(json.loads(path.read_bytes()), start=1):
        figures |= {
            f"accuracy of reward model {n}": report["raw"]["accuracy"]["value"],
            f"noise ceiling of reward model {n}": report["noise_ceiling"]["value"],
            f"binned gap of reward model {n}": report["calibrated"]["binned_gap"]["value"],
        }
    return figures | {
        "accuracy before the change": float(accuracy[accuracy.index < demo.change].mean()),
        "accuracy on the day of the change": float(accuracy[demo.change]),
        "accuracy after the promotion": float(accuracy[accuracy.index > demo.change].mean()),
        "win rate": evaluation["win_rate"]["value"],
        "facts before": evaluation["checkable_champion"]["value"],
        "facts after": evaluation["checkable_candidate"]["value"],
        "lift by dpo": measure_lift(read_samples(demo.home, "demo.policy@2")),
    }


def interval(figure: str) -> tuple[float, float]:
    """Where one new run is expected: mean ± WIDTH standard deviations of the seeds."""
    seeds = [each[figure] for each in json.loads(FIGURES.read_bytes())["seeds"].values()]
    mean, half = statistics.fmean(seeds), WIDTH * statistics.stdev(seeds)
    return mean - half, mean + half


@contextmanager
def _new_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def main(seeds: list[str]) -> None:
    figures: dict[str, dict[str, float]] = {}
    for seed in seeds:
        with _new_folder() as folder:
            demo = run_demo(folder / "demo", int(seed))
            lift = measure_lift(train(copy_before_retraining(demo, folder), "sft"))
            figures[seed] = {k: round(v, 4) for k, v in measure(demo).items()} | {
                "lift by sft": round(lift, 4)
            }
            print(seed, json.dumps(figures[seed]), flush=True)
    command = f"python -m tests.acceptance.demo {' '.join(seeds)}"
    FIGURES.write_text(json.dumps({"command": command, "seeds": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
