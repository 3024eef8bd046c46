"""Records openings of the test split in a separate MLflow experiment."""

from datetime import UTC, datetime
from typing import Any

import pandas as pd

from rlhf_pipeline.frames import FrameSchema, check_frame, integer, text, time
from rlhf_pipeline.registry.tracking import COMMIT
from rlhf_pipeline.registry.versions import Registry
from rlhf_pipeline.votes.splits import Opening, Recorder

PAGE = 1000
MODEL = "rlhf.model"
PURPOSE = "rlhf.purpose"
PAIRS = "rlhf.n_pairs"
HASH = "rlhf.data_hash"
TAG_LENGTH = 5000  # MLflow's limit in characters

OPENINGS = FrameSchema(
    "openings",
    {
        "opened_at": time("when the test pairs were returned"),
        "model": text("the evaluated model"),
        "purpose": text("what was computed from the pairs"),
        "commit": text("git commit of the code; missing outside a checkout", nullable=True),
        "n_pairs": integer("number of test pairs", low=0),
        "data_hash": text("frame hash of the pairs"),
    },
)


def opening_recorder(registry: Registry) -> Recorder:
    """A `record` callback for `open_test_split`: writes one finished MLflow run per opening, with
    tags only.

    The callback raises StoreError if MLflow cannot be written; the split then stays closed.
    """
    return lambda opening: _record_opening(registry, opening)


def list_openings(registry: Registry) -> pd.DataFrame:
    """OPENINGS of the project, oldest first."""
    client, _ = registry.tracking.open()
    experiment = client.get_experiment_by_name(_experiment(registry))
    rows: list[dict[str, Any]] = []
    token: str | None = None
    while experiment is not None:
        page = client.search_runs([experiment.experiment_id], max_results=PAGE, page_token=token)
        rows += [_row(run) for run in page]
        token = page.token
        if not token:
            break
    frame = pd.DataFrame(rows, columns=list(OPENINGS.columns))
    return check_frame(frame, OPENINGS).sort_values(
        ["opened_at", "model", "purpose"], kind="stable", ignore_index=True
    )


def _experiment(registry: Registry) -> str:
    return f"{registry.project}.test_split_openings"


def _record_opening(registry: Registry, opening: Opening) -> None:
    tags = {
        MODEL: opening.model[:TAG_LENGTH],
        PURPOSE: opening.purpose[:TAG_LENGTH],
        PAIRS: str(opening.n_pairs),
        HASH: opening.data_hash,
        **({} if opening.commit is None else {COMMIT: opening.commit}),
    }
    milliseconds = round(opening.opened_at.timestamp() * 1000)
    client, _ = registry.tracking.open()

    def write() -> None:
        experiment_id = registry.tracking.get_or_create_experiment(_experiment(registry))
        run = client.create_run(
            experiment_id,
            start_time=milliseconds,
            tags=tags,
            run_name=f"{opening.purpose[:200]}: {opening.model[:200]}",
        )
        client.set_terminated(run.info.run_id, end_time=milliseconds)

    registry.tracking.write(write)


def _row(run: Any) -> dict[str, Any]:
    tags = run.data.tags
    return {
        "opened_at": datetime.fromtimestamp(run.info.start_time / 1000, UTC),
        "model": tags[MODEL],
        "purpose": tags[PURPOSE],
        "commit": tags.get(COMMIT),
        "n_pairs": int(tags[PAIRS]),
        "data_hash": tags[HASH],
    }
