"""How digests, ids and keys that a home stores are computed, by the name of their golden file
and entry.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd

from rlhf_pipeline.comparisons.repeats import comparison_id
from rlhf_pipeline.completions.base import CompletionRequest, CompletionResult
from rlhf_pipeline.completions.request_plan import cache_key, encode_sampling
from rlhf_pipeline.datasets.comparisons import ComparisonImport
from rlhf_pipeline.datasets.split_conflicts import _key as split_group_key
from rlhf_pipeline.datasets.votes import import_key
from rlhf_pipeline.frames import SCHEMAS, check_frame, frame_hash
from rlhf_pipeline.prompts.base import prompt_id
from rlhf_pipeline.records import (
    NewVote,
    content_hash,
    content_id,
    folder_hash,
)
from rlhf_pipeline.store.audit import (
    link_hash,
    row_digest,
)
from rlhf_pipeline.store.casting import prepare_row
from rlhf_pipeline.store.comparisons import pair_key
from rlhf_pipeline.store.schema import votes
from rlhf_pipeline.votes.preference_pairs import training_data_hash, training_rows
from rlhf_pipeline.votes.splits import split_of
from rlhf_pipeline.web.votes.casting import _store_key

MOMENTS = ("voted_at", "received_at", "created_at", "published_at", "predicted_at", "at")


def digest_vote_body(given: dict[str, Any]) -> dict[str, Any]:
    row = prepare_row(NewVote.model_validate(given))
    return {
        "body_hash": row["body_hash"],
        "vote_id": row["vote_id"],
        "details": row["details"],
    }


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


def hash_folder(files: dict[str, str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), files)
        return folder_hash(Path(folder))


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


DIGESTS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "votes": {
        "body": digest_vote_body,
        "row": lambda given: row_digest(votes, _row(given)),
        "key of an API vote": lambda given: _store_key(
            SimpleNamespace(user_id=given["user_id"]), given["key"]
        ),  # type: ignore[arg-type]
        "key of an imported vote": lambda given: import_key(_row(given)),
    },
    "audit": {
        "content hash": lambda parts: content_hash(*parts),
        "content id": lambda parts: content_id(*parts),
        "link": lambda given: link_hash(_row(given)),
    },
    "ids": {
        "prompt": lambda given: prompt_id(given["text"], given["reference"]),
        "comparison": lambda given: comparison_id(**given),
        "pair": lambda given: pair_key(**given),
        "imported comparison": identify_imported_comparison,
        "split": split_of,
        "split group": split_group_key,
    },
    "completions": {"request": key_completion},
    "frames": {"frame": hash_frame, "training data": hash_training_data},
    "models": {"folder": hash_folder},
}


def as_json(value: Any) -> Any:
    """As it reads when it comes back from a golden file."""
    return json.loads(json.dumps(value))
