"""`POST /api/v1/predictions` against a live server: what the command line says, for those who may
ask, by whoever is champion.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rlhf_pipeline.client import Client
from rlhf_pipeline.core.api_types.project import PairToPredict
from rlhf_pipeline.core.errors import ConflictingRequest, InvalidScores
from rlhf_pipeline.core.records import Role
from rlhf_pipeline.learn.champions import CalibratedModel
from rlhf_pipeline.store import Store
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.server import WebServer
from tests.learnt_home import LearntHome, learnt_home
from tests.web.conftest import UNCACHED, ShiftedClock, Web

ASKED = [
    ("Name a colour.", "It is certainly red. Thanks for asking!", "no"),
    ("And a fruit?", "pear", "A pear, which is sweet — ü."),
]
PAIRS = [{"prompt": p, "completion_a": a, "completion_b": b} for p, a, b in ASKED]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> LearntHome:
    return learnt_home(tmp_path_factory.mktemp("learnt"))


@pytest.fixture(scope="module")
def served(home: LearntHome) -> Iterator[Web]:
    settings = home.settings
    store = Store.open(settings.store_url)
    with (
        store,
        WebServer(create_app(settings, store, has_pages=False, cache_times=UNCACHED)) as server,
    ):
        yield Web(store, settings, server.url, ShiftedClock())


@pytest.fixture(scope="module")
def engineer(served: Web) -> Iterator[httpx.Client]:
    with served.client(Role.ENGINEER) as client:
        yield client


def ask(client: httpx.Client, body: Any, **headers: str) -> dict[str, Any]:
    answer = client.post("/predictions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    predictions: dict[str, Any] = answer.json()
    return predictions


def test_predictions_equal_those_of_the_command(
    home: LearntHome, engineer: httpx.Client, tmp_path: Path
) -> None:
    pairs_file, out = tmp_path / "pairs.jsonl", tmp_path / "predictions.jsonl"
    pairs_file.write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS), encoding="utf-8")
    home.rlhf("reward", "predict", "--input", str(pairs_file), "--out", str(out))
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    predictions = ask(engineer, {"pairs": PAIRS})
    assert len(lines) == len(predictions["predictions"]) == 2
    for line, answer in zip(lines, predictions["predictions"], strict=True):
        for name in ("p_raw", "p_calibrated", "score_a", "score_b"):
            assert answer[name] == pytest.approx(line[name], abs=1e-6), name
        assert answer["features_hash"] == line["features_hash"]
        assert {
            name: predictions[name]
            for name in ("reward_model", "calibrator", "data_hash", "data_seq")
        } == {name: line[name] for name in ("reward_model", "calibrator", "data_hash", "data_seq")}
    assert predictions["reward_model"] == "demo.reward_model@1"
    assert predictions["calibrator"].endswith("@1")


@pytest.mark.parametrize(
    "body",
    [
        {"pairs": []},
        {"pairs": PAIRS[:1] * 51},
        {"prompt": "x", "completion_a": "y"},
        {"prompt": "x", "completion_a": "y", "completion_b": None},
        {**PAIRS[0], "pairs": PAIRS},
        {**PAIRS[0], "completion_b": "x" * 20_001},
    ],
)
def test_invalid_prediction_request_names_the_field(
    engineer: httpx.Client, body: dict[str, Any]
) -> None:
    answer = engineer.post("/predictions", json=body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["errors"][0]["path"].startswith("body")


def test_nan_prediction_is_a_server_error(
    engineer: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: object, **__: object) -> None:
        raise InvalidScores(
            "The network gives NaN or infinite numbers for a text. Its weights are damaged: load "
            "or fit it again."
        )

    monkeypatch.setattr(CalibratedModel, "predict", damaged)
    answer = engineer.post("/predictions", json=PAIRS[0])
    assert answer.status_code == 503
    assert answer.json()["type"] == "urn:rlhf:problem:model_unavailable"
    assert answer.headers["Retry-After"] == "1"
    assert "weights are damaged" in answer.json()["detail"]
    monkeypatch.undo()
    ask(engineer, PAIRS[0])


def test_new_champion_and_calibrator_serve_without_a_restart(
    home: LearntHome, served: Web, engineer: httpx.Client
) -> None:
    before = ask(engineer, PAIRS[0])
    home.rlhf("reward", "calibrate", "--set", "min_pairs=10", "--set", "methods=[temperature]")
    calibrated = ask(engineer, PAIRS[0])
    assert calibrated["reward_model"] == before["reward_model"]
    assert calibrated["calibrator"].endswith("@2")
    home.rlhf("reward", "train", "--label", "majority", "--set", "l2_grid=[3.0]")
    home.rlhf("models", "promote", "demo.reward_model@2", "--reason", "a test")
    after = ask(engineer, PAIRS[0])
    assert after["reward_model"] == "demo.reward_model@2"
    assert after["calibrator"] == "none"
    assert (
        after["predictions"][0]["p_raw"]
        == after["predictions"][0]["p_calibrated"]
        != before["predictions"][0]["p_raw"]
    )


def test_prediction_without_a_champion_creates_no_registry(web: Web) -> None:
    with web.client(Role.ENGINEER) as client:
        answer = client.post("/predictions", json=PAIRS[0])
        assert answer.status_code == 409
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == "urn:rlhf:problem:no_champion"
        assert "rlhf reward train" in answer.json()["detail"]
        secret = client.headers["Authorization"].removeprefix("Bearer ")
        with Client(web.url, secret) as api, pytest.raises(ConflictingRequest):
            api.predict(PairToPredict(**PAIRS[0]))
    assert not (web.settings.home / "mlflow").exists()
