"""Records openings of the test split in a separate MLflow experiment."""

from collections.abc import Callable

from rlhf_pipeline.core.records import Opening
from rlhf_pipeline.registry.tracking import COMMIT
from rlhf_pipeline.registry.versions import Registry

MODEL = "rlhf.model"
PURPOSE = "rlhf.purpose"
PAIRS = "rlhf.n_pairs"
HASH = "rlhf.data_hash"
TAG_LENGTH = 5000  # MLflow's limit in characters


def opening_recorder(registry: Registry) -> Callable[[Opening], None]:
    """A `record` callback for `open_test_split`: writes one finished MLflow run per opening, with
    tags only.

    The callback raises StoreError if MLflow cannot be written; the split then stays closed.
    """
    return lambda opening: _record_opening(registry, opening)


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
