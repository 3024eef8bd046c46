"""The engine over fake backends: grid, seeds, ids, cache, failures."""

from collections.abc import Iterator, Sequence

import pandas as pd
import pytest
from pydantic import ValidationError

from rlhf_pipeline.core.errors import BackendUnavailable, CompletionError
from rlhf_pipeline.core.frames import COMPLETIONS
from rlhf_pipeline.generate.completions import (
    CompletionParams,
    CompletionRequest,
    CompletionResult,
)
from rlhf_pipeline.store import Store
from tests.ledgers import complete_frame


class Scripted:
    """Completes with the request's own numbers; fails or stops where told."""

    name, model_version = "scripted", "scripted-1"

    def __init__(
        self, *, failing: Sequence[str] = (), unavailable_at: int | None = None, lost: int = 0
    ) -> None:
        self.failing = failing
        self.unavailable_at = unavailable_at
        self.lost = lost
        self.batches: list[int] = []
        self.seen: list[CompletionRequest] = []

    def complete(self, requests: Sequence[CompletionRequest]) -> Iterator[CompletionResult]:
        self.batches.append(len(requests))
        for request in requests[: len(requests) - self.lost]:
            if self.unavailable_at == len(self.seen):
                raise BackendUnavailable("down")
            self.seen.append(request)
            failed = request.prompt_id in self.failing
            yield (
                CompletionResult.failed("no")
                if failed
                else CompletionResult(text=f"{request.prompt} {request.seed}", n_tokens=2)
            )


def test_k_completions_have_distinct_seeds_and_ids(prompts: pd.DataFrame) -> None:
    frame = complete_frame(prompts, Scripted(), CompletionParams(k=4))
    assert list(frame.columns) == list(COMPLETIONS.columns)
    assert len(frame) == 20
    assert frame["completion_id"].is_unique
    assert frame.groupby("prompt_id")["seed"].nunique().eq(4).all()
    assert frame["sample_index"].tolist() == [0, 1, 2, 3] * 5
    assert frame["prompt_id"].tolist() == [p for p in prompts["prompt_id"] for _ in range(4)]


def test_the_grid_is_cycled_and_stored_with_every_completion(prompts: pd.DataFrame) -> None:
    frame = complete_frame(
        prompts[:1], Scripted(), CompletionParams(k=5, temperatures=[0.2, 1.0], top_ps=[1.0, 0.5])
    )
    assert list(zip(frame["temperature"], frame["top_p"], strict=True)) == [
        (0.2, 1.0),
        (0.2, 0.5),
        (1.0, 1.0),
        (1.0, 0.5),
        (0.2, 1.0),
    ]


def test_the_order_of_prompts_and_the_batch_size_do_not_matter(prompts: pd.DataFrame) -> None:
    single = complete_frame(prompts, Scripted(), CompletionParams(batch_size=1))
    backend = Scripted()
    other = complete_frame(prompts.iloc[::-1], backend, CompletionParams(batch_size=7))
    assert backend.batches == [7, 7, 6]
    by_id = ["completion_id"]
    pd.testing.assert_frame_equal(
        single.sort_values(by_id, ignore_index=True), other.sort_values(by_id, ignore_index=True)
    )


def test_cached_completions_are_not_generated_again(prompts: pd.DataFrame, store: Store) -> None:
    first = complete_frame(prompts[:3], Scripted(), CompletionParams(), store.generation)
    backend = Scripted()
    again = complete_frame(prompts, backend, CompletionParams(), store.generation)
    assert len(backend.seen) == 8
    pd.testing.assert_frame_equal(first, again[:12])
    other = Scripted()
    complete_frame(prompts, other, CompletionParams(max_new_tokens=9), store.generation)
    assert len(other.seen) == 20, "another limit may give another text"


def test_failed_request_is_a_row_and_is_retried(prompts: pd.DataFrame, store: Store) -> None:
    frame = complete_frame(prompts, Scripted(failing=["p1"]), CompletionParams(), store.generation)
    failed = frame[frame["prompt_id"] == "p1"]
    assert (
        failed["text"].eq("") & failed["error"].eq("no") & failed["finish_reason"].eq("error")
    ).all()
    assert frame[frame["prompt_id"] != "p1"]["error"].isna().all()
    backend = Scripted()
    assert (
        complete_frame(prompts, backend, CompletionParams(), store.generation)["error"].isna().all()
    )
    assert {r.prompt_id for r in backend.seen} == {"p1"}


def test_if_every_request_fails_the_stage_fails_with_the_reason(prompts: pd.DataFrame) -> None:
    with pytest.raises(CompletionError, match=r"All 20 completions by scripted .* the first: no"):
        complete_frame(prompts, Scripted(failing=list(prompts["prompt_id"])), CompletionParams())


def test_completions_before_an_outage_are_kept(prompts: pd.DataFrame, store: Store) -> None:
    with pytest.raises(BackendUnavailable):
        complete_frame(
            prompts, Scripted(unavailable_at=10), CompletionParams(batch_size=8), store.generation
        )
    [run] = store.generation.list_runs()
    assert run.states == {"succeeded": 10, "open": 10}


@pytest.mark.parametrize("text", ["", " \n", None])
def test_a_completion_without_text_is_a_failure(prompts: pd.DataFrame, text: str | None) -> None:
    class Silent(Scripted):
        def complete(self, requests: Sequence[CompletionRequest]) -> Iterator[CompletionResult]:
            yield from (CompletionResult(text=text if r.sample_index else "word") for r in requests)

    frame = complete_frame(prompts, Silent(), CompletionParams(k=2))
    assert frame["error"].isna().tolist() == [True, False] * 5
    assert frame["text"].tolist() == ["word", ""] * 5


def test_missing_result_of_a_backend_is_an_error(prompts: pd.DataFrame) -> None:
    with pytest.raises(CompletionError, match="scripted"):
        complete_frame(prompts, Scripted(lost=1), CompletionParams())


@pytest.mark.parametrize("bad", [{"temperatures": [0.5, 3]}, {"top_ps": [0.0]}])
def test_parameters_out_of_range_are_refused(bad: dict[str, list[float]]) -> None:
    with pytest.raises(ValidationError, match=r"should be (less|greater) than"):
        CompletionParams(**bad)  # type: ignore[arg-type]


def test_reasoning_of_a_local_policy_is_kept_apart(prompts: pd.DataFrame) -> None:
    texts = ("<think>\nHm.\n</think>\n\nYes.", "<think>\nHm, per")

    class Reasoner(Scripted):
        def complete(self, requests: Sequence[CompletionRequest]) -> Iterator[CompletionResult]:
            for request in requests:
                is_cut = request.sample_index == 1
                reason = "length" if is_cut else "stop"
                yield CompletionResult(text=texts[is_cut], finish_reason=reason)

    frame = complete_frame(prompts[:1], Reasoner(), CompletionParams(k=2))
    assert frame["text"].tolist() == ["Yes.", ""]
    assert "reasoning and no answer" in frame["error"][1]
    assert "max_new_tokens" in frame["error"][1]
    frame = complete_frame(prompts[:1], Reasoner(), CompletionParams(k=2, reasoning="train"))
    assert frame["text"][0] == texts[0]
