"""Trains by command on real debates, some left out, and measures on those.

`python -m tests.acceptance.real.debates 5` makes debate_figures.json anew: the data's own split,
then four in which other debates are left out, from which the test takes prediction intervals.
"""

import json
import random
import statistics
import sys
import tempfile
from pathlib import Path

from tests.acceptance.home import Home
from tests.acceptance.real.votes import (
    DEBATES,
    TIMEOUT_S,
    import_all,
    read,
    read_lines,
    training_data,
)

FILE = Path(__file__).with_name("debate_figures.json")
FIGURES = ("accuracy", "binned gap", "ECE")
WIDTH = 5  # standard deviations to either side of the mean of the splits


def measure_split(home: Home, folder: Path, number: int) -> dict[str, float]:
    """Accuracy on the votes of two debates that the reward model has not learnt, with its noise
    ceiling, and the error of its calibration by two others.
    """
    pairs = read("pairs").set_index("pair_id")
    pairs = pairs[pairs["source"] == DEBATES]
    names = {row["comparison_id"]: row["source_pair_id"] for row in home.export("comparisons")}
    splits = draw_splits(pairs["group"].to_dict(), pairs["split"].to_dict(), number)
    lines = [
        line | {"split": splits[pair]}
        for line in read_lines(training_data(home.path))
        if (pair := names[line["comparison_id"]]) in splits
    ]
    path = folder / f"split_{number}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    home.run("reward", "train", "--data", path, timeout_s=TIMEOUT_S)
    home.run("reward", "calibrate", "--data", path, "--no-promote", timeout_s=TIMEOUT_S)
    home.run("export", "calibration-log", "--out", folder / "calibrations.json")
    report = json.loads((folder / "calibrations.json").read_bytes())[-1]
    return {
        "accuracy": report["raw"]["accuracy"]["value"],
        "noise ceiling": report["noise_ceiling"]["value"],
        "binned gap": report["calibrated"]["binned_gap"]["value"],
        "ECE": report["calibrated"]["ece"]["value"],
    }


def draw_splits(debates: dict[str, str], published: dict[str, str], number: int) -> dict[str, str]:
    """The split of each pair: the published one, or one with other debates in calib and test."""
    if number == 0:
        return published
    names = sorted(set(debates.values()))
    random.Random(number).shuffle(names)
    of_debate = dict.fromkeys(names, "train") | dict.fromkeys(names[:2], "calib")
    of_debate |= dict.fromkeys(names[2:4], "test")
    return {pair: of_debate[debate] for pair, debate in debates.items()}


def interval(figure: str) -> tuple[float, float]:
    """Where one new run is expected: mean ± WIDTH standard deviations of the splits."""
    figures = [each[figure] for each in json.loads(FILE.read_bytes())["splits"].values()]
    mean, half = statistics.fmean(figures), WIDTH * statistics.stdev(figures)
    return mean - half, mean + half


def main(n_splits: int) -> None:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "real"
        import_all(folder)
        figures = {}
        for number in range(n_splits):
            measured = measure_split(Home(folder / "home"), folder, number)
            figures[str(number)] = {name: round(measured[name], 4) for name in FIGURES}
            print(number, figures[str(number)], flush=True)
    command = f"python -m tests.acceptance.real.debates {n_splits}"
    FILE.write_text(json.dumps({"command": command, "splits": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
