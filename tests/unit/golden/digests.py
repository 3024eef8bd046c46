"""How each digest, id, key and tag that lies in people's homes is computed, by the name of its
golden file and entry.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from rlhf_pipeline.comparisons.pairing import _seed as pairing_seed
from rlhf_pipeline.comparisons.repeats import comparison_id, shuffle_by_seed
from rlhf_pipeline.completions.base import CompletionRequest, CompletionResult
from rlhf_pipeline.completions.engine import generate
from rlhf_pipeline.completions.request_plan import CompletionParams, cache_key, encode_sampling
from rlhf_pipeline.config import Settings
from rlhf_pipeline.datasets.comparisons import ComparisonImport
from rlhf_pipeline.datasets.pseudonyms import Pseudonyms
from rlhf_pipeline.datasets.split_conflicts import _key as split_group_key
from rlhf_pipeline.datasets.votes import import_key
from rlhf_pipeline.drift import DETECTORS
from rlhf_pipeline.drift.base import params_hash
from rlhf_pipeline.drift.calibration_events import calibration_events
from rlhf_pipeline.evaluation.judge import EvaluationParams, _sample_prompts
from rlhf_pipeline.evaluation.prompt_set import prompts_hash
from rlhf_pipeline.frames import PROMPTS, SCHEMAS, check_frame, frame_hash
from rlhf_pipeline.policy.devices import CPU
from rlhf_pipeline.prompts.base import day_seed, prompt_id
from rlhf_pipeline.records import (
    DriftEvent,
    NewFeedback,
    NewVote,
    TasteChange,
    TriggerDecision,
    content_hash,
    content_id,
    folder_hash,
)
from rlhf_pipeline.reflection import predict
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.registry.openings import opening_recorder
from rlhf_pipeline.registry.runs import open_run
from rlhf_pipeline.retraining.candidates import build_lineage
from rlhf_pipeline.retraining.memory import ModelShape
from rlhf_pipeline.retraining.parameters import StrategyParams
from rlhf_pipeline.retraining.preparation import complete_params
from rlhf_pipeline.retraining.strategies.base import sample_by_weight
from rlhf_pipeline.store.anchors import add_daily_anchor
from rlhf_pipeline.store.audit import (
    link_hash,
    row_digest,
    rows_digest,
    taste_change_digest,
    vote_digest,
)
from rlhf_pipeline.store.card_queue import _number_of
from rlhf_pipeline.store.casting import prepare_row
from rlhf_pipeline.store.comparisons import pair_key
from rlhf_pipeline.store.completions_cache import _prefix_hash
from rlhf_pipeline.store.decisions import decision_digest
from rlhf_pipeline.store.schema import (
    annotation_rules,
    comparisons,
    feedback,
    guidelines,
    predictions,
)
from rlhf_pipeline.store.tokens import _hash as secret_hash
from rlhf_pipeline.votes.preference_pairs import training_data_hash, training_rows
from rlhf_pipeline.votes.splits import Opening, split_of
from rlhf_pipeline.web.auth import SECRET_FILE, Auth
from rlhf_pipeline.web.idempotency import request_bytes
from rlhf_pipeline.web.votes.casting import _store_key
from tests.ledgers import temporary_ledger

# of the code that runs the test
COMMIT_AND_RELEASE = ("mlflow.source.git.commit", "rlhf_pipeline.version")
MOMENTS = ("voted_at", "received_at", "created_at", "published_at", "predicted_at", "at")


def digest_vote_body(given: dict[str, Any]) -> dict[str, Any]:
    row = prepare_row(NewVote.model_validate(given))
    return {
        "body_hash": row["body_hash"],
        "vote_id": row["vote_id"],
        "details": row["details"],
    }


def write_anchor(given: dict[str, Any]) -> str:
    """The line that is written for a chain that stands at `seq` and `hash`."""
    audit: Any = SimpleNamespace(head=lambda: (given["seq"], given["hash"]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "anchors"
        add_daily_anchor(
            path,
            audit,
            given["organization"],
            given["project"],
            datetime.fromisoformat(given["at"]),
        )
        return path.read_text()


def digest_request(given: dict[str, Any]) -> str:
    store: Any = None  # digests need none
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / SECRET_FILE).write_text(given["secret"])
        auth = Auth(store, Settings(home=Path(home)))
        return auth.digest(
            request_bytes(given["method"], given["path"], given["query"], given["body"].encode())
        )


class Echo:
    """Completes with the prompt and the seed it was given."""

    name, model_version = "echo", "echo-1"

    def complete(self, requests: Sequence[CompletionRequest]) -> Iterator[CompletionResult]:
        for request in requests:
            yield CompletionResult(text=f"{request.prompt} {request.seed}", n_tokens=1)


class HostedEcho(Echo):
    provider, model = "acme", "acme-large"


def key_completion(given: dict[str, Any]) -> dict[str, str]:
    backend: Any = HostedEcho() if given["is_hosted"] else Echo()
    request = CompletionRequest.model_validate(given["request"])
    return {"cache_key": cache_key(backend, request), "sampling": encode_sampling(request)}


def generate_completions(given: dict[str, Any]) -> list[dict[str, Any]]:
    """What a small completions run stores."""
    prompts = check_frame(pd.DataFrame(given["prompts"]), PROMPTS)
    made = generate(
        prompts, [Echo()], CompletionParams(**given["params"]), ledger=temporary_ledger()
    ).frame
    return made[["completion_id", "prompt_id", "text", "sample_index", "seed"]].to_dict("records")


def identify_imported_comparison(given: dict[str, Any]) -> dict[str, Any]:
    nobody: Any = None  # ids depend on the cells alone
    shelf = ComparisonImport(
        nobody, nobody, pair_key, nobody, datetime(2026, 3, 1, tzinfo=UTC), given["source"]
    )
    found = shelf._build_comparison(given["cells"], 0, is_own=False)
    return {
        name: found[name]
        for name in ("comparison_id", "prompt_id", "completion_a_id", "completion_b_id", "pair_key")
    }


def hash_frame(given: dict[str, Any]) -> str:
    schema = SCHEMAS[given["schema"]]
    return frame_hash(check_frame(pd.DataFrame(given["rows"]), schema))


def hash_training_data(rows: list[dict[str, Any]]) -> dict[str, Any]:
    pairs = pd.DataFrame(rows)
    return {"hash": training_data_hash(pairs), "rows": training_rows(pairs)}


class FixedScores:
    """Scores each text by its length."""

    def score(self, prompts: Sequence[str], completions: Sequence[str], **_: Any) -> Any:
        return np.asarray([float(len(text)) for text in completions])


def hash_features(row: dict[str, Any]) -> str:
    scores: Any = FixedScores()
    about = {
        "reward_model_label": "m@1",
        "calibrator_version": "none",
        "data_hash": "d",
        "predicted_at": datetime(2026, 3, 1, tzinfo=UTC),
    }
    return str(predict(pd.DataFrame([row]), scores, **about)["features_hash"].iloc[0])


def hash_detector_params(given: dict[str, Any]) -> str:
    kind = DETECTORS[given["detector"]]
    return params_hash(kind(kind.Params(**given["params"])))


def identify_calibration_event(given: dict[str, Any]) -> dict[str, str]:
    rows = pd.DataFrame([{"reward_model": "m@1", "is_error": True, "seq": 7, "day": "2026-03-01"}])
    (event,) = calibration_events(
        rows, [{**given, "passed": False, "value": 2.0}], model_version="m@1"
    )
    return {"params_hash": event.params_hash, "event_id": event.event_id}


def hash_folder(files: dict[str, str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), files)
        return folder_hash(Path(folder))


class NoVersions(list[Any]):
    """A page of model versions, the last one."""

    token = None


class RecordingTracking:
    """Keeps the tags that would go to MLflow, where there is no version and no run yet."""

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}
        self.client = self

    def open(self) -> tuple[Any, str]:
        return self, "1"

    def write(self, act: Callable[[], Any]) -> Any:
        return act()

    def get_or_none(self, ask: Callable[[], Any]) -> Any:
        return ask()

    def get_or_create_experiment(self, name: str) -> str:
        return name

    def run_url(self, run_id: str) -> str:
        return run_id

    def search_model_versions(self, *_: Any, **__: Any) -> NoVersions:
        return NoVersions()

    def search_runs(self, *_: Any, **__: Any) -> list[Any]:
        return []

    def log_artifacts(self, *_: Any) -> None: ...

    def set_terminated(self, *_: Any, **__: Any) -> None: ...

    def get_registered_model(self, name: str) -> str:
        return name

    def create_model_version(
        self, name: str, source: str, run_id: str, *, tags: dict[str, str], description: str
    ) -> Any:
        self.tags = {**tags, "(name)": name, "(source)": source, "(description)": description}
        return SimpleNamespace(
            name=name, version="1", source=source, run_id=run_id, tags=tags, creation_timestamp=0
        )

    def create_run(
        self, experiment_id: str, *, tags: dict[str, str], run_name: str, **_: Any
    ) -> Any:
        self.tags = {**tags, "(experiment)": experiment_id, "(name)": run_name}
        return SimpleNamespace(info=SimpleNamespace(run_id="r"))


def tag_version(given: dict[str, Any]) -> dict[str, str]:
    registry, tracking = _recorded()
    run: Any = SimpleNamespace(run_id="r", set_tags=lambda tags: None)
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), given["files"])
        registry.register("reward_model", Path(folder), run=run, **given["about"])
    return _without_commit(tracking.tags)


def tag_run(given: dict[str, Any]) -> dict[str, str]:
    _, tracking = _recorded()
    open_run(tracking, given["name"], given["tags"], given["run_key"])
    return _without_commit(tracking.tags)


def tag_opening(given: dict[str, Any]) -> dict[str, str]:
    registry, tracking = _recorded()
    opening_recorder(registry)(Opening.model_validate(given))
    return tracking.tags


def fingerprint_candidate(given: dict[str, Any]) -> dict[str, Any]:
    embedded = ModelShape(1_160_000, n_adapted=0, n_layers=2, width=192, n_vocabulary=1024)
    lineage = build_lineage(
        given["strategy"],
        complete_params(StrategyParams(**given["params"]), embedded, CPU),
        given["parent_hash"],
        given["data_hash"],
    )
    return {"lineage": lineage, "fingerprint": content_hash(lineage)}


def _recorded() -> tuple[Registry, Any]:
    registry = Registry("sqlite:///never-opened.db", "never-written", "demo")
    tracking: Any = RecordingTracking()
    registry._tracking = tracking
    return registry, tracking


def _without_commit(tags: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in tags.items() if name not in COMMIT_AND_RELEASE}


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def _row(given: dict[str, Any]) -> dict[str, Any]:
    """A stored row: its moments as the store gives them."""
    return {
        name: datetime.fromisoformat(value) if name in MOMENTS and value is not None else value
        for name, value in given.items()
    }


def _ids(frame: pd.DataFrame) -> list[str]:
    return [str(one) for one in frame["comparison_id"]]


DIGESTS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "votes": {
        "body": digest_vote_body,
        "row": lambda given: vote_digest(_row(given)),
        "key of an API vote": lambda given: _store_key(
            SimpleNamespace(user_id=given["user_id"]), given["key"]
        ),  # type: ignore[arg-type]
        "key of an imported vote": lambda given: import_key(_row(given)),
    },
    "audit": {
        "content hash": lambda parts: content_hash(*parts),
        "content id": lambda parts: content_id(*parts),
        "link": lambda given: link_hash(_row(given)),
        "anchor": write_anchor,
        "taste change": lambda given: taste_change_digest(TasteChange.model_validate(given)),
        "published comparisons": lambda rows: rows_digest(comparisons, [_row(row) for row in rows]),
        "written predictions": lambda rows: rows_digest(predictions, [_row(row) for row in rows]),
        "decision": lambda given: decision_digest(TriggerDecision.model_validate(given)),
    },
    "feedback": {
        "row": lambda given: row_digest(feedback, _row(given)),
        "record": lambda given: NewFeedback.model_validate(given).model_dump_json(
            exclude_none=True
        ),
    },
    "rules": {
        "rules": lambda given: row_digest(annotation_rules, _row(given)),
        "guidelines": lambda given: row_digest(guidelines, _row(given)),
    },
    "requests": {
        "request": digest_request,
        "token or login": secret_hash,
        "pseudonym": lambda given: Pseudonyms(bytes.fromhex(given["salt"]))(given["name"]),
    },
    "ids": {
        "prompt": lambda given: prompt_id(given["text"], given["reference"]),
        "comparison": lambda given: comparison_id(**given),
        "pair": lambda given: pair_key(**given),
        "imported comparison": identify_imported_comparison,
        "split": split_of,
        "split group": split_group_key,
    },
    "seeds": {
        "day": lambda given: day_seed(**given),
        "pairing": lambda parts: pairing_seed(*parts),
        "card": _number_of,
        "position": lambda given: _ids(shuffle_by_seed(pd.DataFrame(given["rows"]), given["seed"])),
        "weight": lambda given: _ids(
            sample_by_weight(pd.DataFrame(given["rows"]), seed=given["seed"])
        ),
        "evaluation": lambda given: _sample_prompts(
            pd.DataFrame(given["prompts"]), EvaluationParams(**given["params"])
        )["seed"].tolist(),
    },
    "completions": {
        "request": key_completion,
        "generation": generate_completions,
        "cached value": lambda given: _prefix_hash(given["key"], given["value"]),
    },
    "frames": {
        "frame": hash_frame,
        "training data": hash_training_data,
        "prompt set": lambda rows: prompts_hash(pd.DataFrame(rows)),
        "features": hash_features,
    },
    "drift": {
        "detector": hash_detector_params,
        "event": lambda given: DriftEvent.model_validate(given).event_id,
        "calibration": identify_calibration_event,
    },
    "models": {
        "folder": hash_folder,
        "version": tag_version,
        "run": tag_run,
        "opening of the test split": tag_opening,
        "candidate": fingerprint_candidate,
    },
}


def as_json(value: Any) -> Any:
    """As it reads when it comes back from a golden file."""
    return json.loads(json.dumps(value))
