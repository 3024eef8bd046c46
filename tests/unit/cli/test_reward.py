"""The vote predictor by hand: from votes to a calibrated champion, and what it is asked, with the
files of its predecessor.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.training_files import TrainingFiles, read_pairs
from rlhf_pipeline.core.errors import (
    ConfigurationError,
    DatasetError,
    ModelNotFound,
    NotEnoughData,
)
from rlhf_pipeline.core.frames import PREFERENCE_PAIRS
from rlhf_pipeline.core.records import CalibrationReport, NewVote, folder_hash
from rlhf_pipeline.learn.champions import Champions
from rlhf_pipeline.learn.reward_model import load_reward_model
from rlhf_pipeline.watch.reflection import predict
from tests.learnt_home import NOON, LearntHome, comparisons, learnt_home

QUICK = (
    "--set",
    "l2_grid=[0.1]",
    "--set",
    "context_penalty_grid=[3.0]",
    "--set",
    "n_resamples=100",
)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> LearntHome:
    """Read only; who changes one takes `mine`."""
    return learnt_home(tmp_path_factory.mktemp("learnt"))


@pytest.fixture
def mine(learnt: LearntHome, tmp_path: Path) -> LearntHome:
    return learnt.copied(tmp_path / "home")


def files(home: LearntHome) -> TrainingFiles:
    return TrainingFiles(home.settings.home)


def champions(home: LearntHome) -> Champions:
    return Workspace(home.settings).champions


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def pairs_file(tmp_path: Path) -> Callable[..., Path]:
    def write(*rows: object) -> Path:
        path = tmp_path / "pairs.jsonl"
        path.write_text(
            "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows),
            encoding="utf-8",
        )
        return path

    return write


PAIR = {
    "prompt": "What is it?",
    "completion_a": "Thank you for asking. It is red.",
    "completion_b": "no",
}


# --- votes prepare
# --------------------------------------------------------------------------------------------------


def test_votes_become_training_data_with_soft_labels(voted: LearntHome, tmp_path: Path) -> None:
    output = voted.rlhf("votes", "prepare", "--out", str(tmp_path / "a.jsonl")).output
    rows = lines(tmp_path / "a.jsonl")
    assert output.startswith(f"{len(rows)} pairs (calib ")
    assert list(rows[0])[:4] == ["prompt", "chosen", "rejected", "margin"]
    labels = {
        split: [row["soft_label"] for row in rows if row["split"] == split]
        for split in ("train", "calib", "test")
    }
    assert labels["test"]
    assert set(labels["test"]) == {None}  # what is learnt from rests on no vote of the test split
    taught = labels["train"] + labels["calib"]
    assert all(0 < label < 1 for label in taught)
    # the annotator model mostly agrees with the majority
    assert np.mean([label > 0.5 for label in taught]) > 0.9
    pairs = read_pairs(tmp_path / "a.jsonl")
    assert list(pairs.columns) == list(PREFERENCE_PAIRS.columns)
    voted.rlhf("votes", "prepare", "--out", str(tmp_path / "b.jsonl"))
    assert (tmp_path / "b.jsonl").read_bytes() == (tmp_path / "a.jsonl").read_bytes()


# --- reward train
# --------------------------------------------------------------------------------------------------


def test_training_makes_a_checkpoint_a_version_and_a_run(learnt: LearntHome) -> None:
    registry = champions(learnt).registry
    version = registry.get("reward_model", 1)
    assert version is not None
    assert version.content_hash == folder_hash(files(learnt).checkpoint)
    assert version.parent is None
    assert version.metrics["test_accuracy"] > 0.6
    assert version.metrics["noise_ceiling"] < 0.9
    assert version.data_seq == read_pairs(files(learnt).training_data)["max_seq"].max()
    assert load_reward_model(files(learnt).checkpoint, encoder=champions(learnt).encoder()).score(
        ["x"], ["thanks"]
    ).shape == (1,)
    (run,) = [run for run in registry.latest_runs(10) if run.name == "rlhf reward train"]
    assert run.status == "FINISHED"
    assert run.params["folds"] == "4"
    assert run.metrics["training_loss"] > 0
    assert run.tags["registered.reward_model"] == version.label
    artifacts = {path.name for path in (learnt.settings.home / "mlflow" / "artifacts").rglob("*")}
    assert {
        "report.json",
        "loss_curve.png",
        "calibrator.json",
        "reliability_diagram.png",
    } <= artifacts


def test_fine_tuned_model_trains_and_predicts_by_the_same_commands(
    mine: LearntHome, pairs_file: Callable[..., Path], tmp_path: Path
) -> None:
    short = (
        "--set",
        "steps=3",
        "--set",
        "max_tokens=32",
        "--set",
        "n_resamples=100",
    )
    rows = [
        row | {"label_seq": 9000} if row["soft_label"] is not None else row
        for row in lines(files(mine).training_data)
    ]
    files(mine).training_data.write_text(
        "".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8"
    )
    mine.rlhf("reward", "train", "--kind", "transformer", "--set", "label=annotators", *short)
    version = champions(mine).registry.get("reward_model", "candidate")
    assert version is not None
    # what it learnt from has seen later votes than the pairs
    assert (version.params["label"], version.data_seq) == ("annotators", 9000)
    assert (version.params["kind"], version.params["steps"]) == ("transformer", 3)
    # what a killed one would leave
    assert not files(mine).checkpoint.with_name("vote_predictor_checkpoint.training").exists()
    mine.rlhf(
        "reward",
        "predict",
        "--input",
        str(pairs_file(PAIR)),
        "--model",
        version.label,
        "--out",
        str(tmp_path / "out.jsonl"),
    )
    (row,) = lines(tmp_path / "out.jsonl")
    assert (row["reward_model"], row["calibrator"]) == (version.label, "none")
    assert 0 < row["p_raw"] == row["p_calibrated"] < 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            ("train", "--kind", "oracle"),
            ConfigurationError,
            r"No 'oracle' in rlhf_pipeline\.reward_model\. Known: embedding",
        ),
        (
            ("train", "--set", "l3_grid=[1]"),
            ConfigurationError,
            r"'l3_grid=\[1\]' changes no parameter.*l2_grid",
        ),
        (("train", "--set", "folds=1"), ConfigurationError, "folds: Input should be greater"),
        (("train", "--set", "folds"), ConfigurationError, "Write NAME=VALUE"),
        (
            ("train", "--set", "kind=transformer"),
            ConfigurationError,
            r"'kind=transformer': use --kind instead; kinds: embedding",
        ),
        (
            ("train", "--kind", "transformer", "--set", "kind=embedding"),
            ConfigurationError,
            "use --kind instead",
        ),
        (("train", "--label", "truth"), ConfigurationError, "label: Input should be"),
        (("train", "--retrain"), ModelNotFound, "no champion to retrain yet"),
        (
            ("train", "--data", "nowhere.jsonl"),
            NotEnoughData,
            r"no training data at nowhere\.jsonl\. Run `rlhf votes prepare`",
        ),
        (
            ("calibrate",),
            ModelNotFound,
            r"no reward model to calibrate yet\. Train one: rlhf reward train",
        ),
        (("calibrate", "--model", "demo.policy@1"), ModelNotFound, "There are: none"),
        (("predict",), ConfigurationError, "either --interactive, or --input"),
        (("probe",), NotEnoughData, r"No comparison was predicted before its votes yet.*champion"),
    ],
)
def test_errors_name_their_cure(
    voted: LearntHome, arguments: tuple[str, ...], error: type, message: str
) -> None:
    voted.rlhf("votes", "prepare")
    with pytest.raises(error, match=message):
        voted.rlhf("reward", *arguments)


# --- reward calibrate
# --------------------------------------------------------------------------------------------------


def test_calibration_makes_a_champion_and_is_logged(mine: LearntHome) -> None:
    assert champions(mine).policy  # the home is whole
    judge = champions(mine).judge()
    assert judge is not None
    assert judge.calibrator_version.endswith("@1")
    output = mine.rlhf(
        "reward",
        "calibrate",
        "--set",
        "min_pairs=10",
        "--set",
        "methods=[temperature]",
        "--set",
        "n_resamples=100",
    ).output
    assert "beside a noise ceiling of 0." in output
    pictures = {path.name for path in (mine.settings.home / "mlflow" / "artifacts").rglob("*.png")}
    assert {"reliability_diagram.png", "reliability_by_group.png"} <= pictures
    log = json.loads(files(mine).calibration_log.read_text(encoding="utf-8"))
    assert [entry["calibrator_version"] for entry in log] == [1, 2]
    assert [
        CalibrationReport.model_validate(entry) for entry in log
    ] == mine.store.calibrations.log()
    again = champions(mine).judge()
    assert again is not None
    assert again.calibrator_version.endswith("@2")


def _calibrations(home: LearntHome) -> list[dict[str, float]]:
    """What MLflow has of each calibration, oldest first."""
    runs = [
        run
        for run in champions(home).registry.latest_runs(50)
        if run.name == "rlhf reward calibrate"
    ]
    return [run.metrics for run in reversed(runs)]


def test_a_candidate_becomes_champion_only_on_request(mine: LearntHome) -> None:
    mine.rlhf("reward", "train", "--checkpoint", str(files(mine).checkpoint), *QUICK)
    version = champions(mine).registry.get("reward_model", "candidate")
    assert version is not None
    assert version.parent == "demo.reward_model@1"  # whose files the folder has
    output = mine.rlhf(
        "reward", "calibrate", "--no-promote", "--set", "min_pairs=10", "--set", "n_resamples=100"
    ).output
    assert "demo.reward_model@2 is not champion" in output
    assert "rlhf models promote demo.reward_model@2" in output
    judge = champions(mine).judge()
    assert judge is not None
    assert judge.label == "demo.reward_model@1"
    assert _calibrations(mine)[-1]["is_champion"] == 0.0


# --- reward predict
# --------------------------------------------------------------------------------------------------


def test_predictions_name_model_and_data(
    learnt: LearntHome, pairs_file: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    turned = PAIR | {
        "completion_a": PAIR["completion_b"],
        "completion_b": PAIR["completion_a"],
        "id": 7,
    }
    for _ in range(2):
        output = learnt.rlhf(
            "reward", "predict", "--input", str(pairs_file(PAIR, turned)), "--out", str(out)
        ).output
    rows = lines(out)
    assert len(rows) == 4  # appended
    assert output.startswith("2 predictions of demo.reward_model@1, ")
    first, other = rows[:2]
    version = champions(learnt).registry.get("reward_model", "champion")
    assert version is not None
    assert (first["reward_model"], first["data_hash"], first["data_seq"]) == (
        version.label,
        version.data_hash,
        version.data_seq,
    )
    assert first["calibrator"].endswith("@1")
    assert first["p_calibrated"] > 0.5
    for name in ("p_raw", "p_calibrated"):
        assert first[name] + other[name] == pytest.approx(1.0, abs=1e-9)
    assert first["features_hash"] != other["features_hash"]
    assert other["id"] == 7
    assert {name: first[name] for name in PAIR} == PAIR


def test_every_invalid_line_of_the_pairs_is_named(
    learnt: LearntHome, pairs_file: Callable[..., Path]
) -> None:
    lacking = {name: text for name, text in PAIR.items() if name != "prompt"}
    path = pairs_file(PAIR, lacking, "", "no JSON", PAIR | {"completion_b": 7})
    with pytest.raises(
        DatasetError,
        match=r"3 of 4 lines are invalid: line 2: prompt is missing; line 4: no JSON.*; "
        r"line 5: completion_b is 7, not a text\. Write one JSON object",
    ):
        learnt.rlhf("reward", "predict", "--input", str(path))


def test_pairs_are_predicted_interactively(learnt: LearntHome, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    typed = "What is it?\\nTell me.\nThank you. It is x.\nno\n\nnever read\n"
    output = learnt.rlhf(
        "reward", "predict", "--interactive", "--out", str(out), input=typed
    ).output
    assert "a is preferred with" in output
    (row,) = lines(out)
    assert row["prompt"] == "What is it?\nTell me."
    cut = learnt.rlhf(
        "reward", "predict", "--interactive", "--out", str(out), input="What?\na only\n"
    ).output
    assert "0 predictions" in cut


# --- reward probe
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def watched(learnt: LearntHome, tmp_path_factory: pytest.TempPathFactory) -> LearntHome:
    """Comparisons that the champion predicted, and votes that came later; ten of them nobody
    judged.
    """
    home = learnt.copied(tmp_path_factory.mktemp("watched") / "home")
    judge = champions(home).judge()
    assert judge is not None
    published = comparisons(80).assign(day="2026-01-03")
    for name in ("comparison_id", "prompt_id"):
        published[name] = "new" + published[name]
    predicted = predict(
        published,
        judge.reward_model,
        judge.calibrator,
        reward_model_label=judge.label,
        calibrator_version=judge.calibrator_version,
        data_hash=judge.version.data_hash or "",
        predicted_at=NOON,
    )
    rng = np.random.default_rng(3)
    with home.store as store:
        store.comparisons.publish(published, predicted, published_at=NOON)
        store.votes.cast_many(
            [
                NewVote(
                    comparison_id=str(row.comparison_id),
                    annotator_id=f"ann{person}",
                    annotator_kind="human",
                    origin="api",
                    voted_at=NOON,
                    choice="a" if (row.p_calibrated > 0.5) == (rng.random() < 0.75) else "b",
                    idempotency_key=f"{row.comparison_id}/{person}",
                )
                for row in predicted.head(70).itertuples()
                for person in range(2)
            ]
        )
    return home


def test_model_is_probed_on_later_votes_with_intervals(
    watched: LearntHome,
) -> None:
    table = watched.rlhf("reward", "probe").output
    probe = json.loads(watched.rlhf("reward", "probe", "--json").output)
    bins = probe["bins"]
    assert sum(row["n"] for row in bins) == 140
    assert all(row["accuracy_low"] <= row["accuracy"] <= row["accuracy_high"] for row in bins)
    right = sum(row["n"] * row["accuracy"] for row in bins) / 140
    assert right == pytest.approx(0.75, abs=0.1)
    assert list(probe) == [
        "model",
        "accuracy",
        "noise_ceiling",
        "ece",
        "bins",
        "confident_predictions",
    ]
    assert (probe["model"], probe["accuracy"]["value"]) == (
        "demo.reward_model@1",
        pytest.approx(right),
    )
    for name in ("accuracy", "noise_ceiling", "ece"):
        figure = probe[name]
        assert figure["low"] < figure["high"]
        assert f"{figure['value']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}]" in " ".join(
            table.split()
        )
    assert "demo.reward_model@1 against 140 votes cast after its predictions" in table
    assert "beside a noise ceiling of 0." in table
    assert files(watched).reliability_diagram.read_bytes().startswith(b"\x89PNG")
    log = lines(files(watched).reflection_log)
    # one for each vote, and the ten that nobody judged: no prediction is an orphan of its log
    assert len(log) == 150
    assert sum(row["vote_id"] is None for row in log) == 10
    assert all(row["reward_model"] and row["calibrator"] and row["features_hash"] for row in log)
