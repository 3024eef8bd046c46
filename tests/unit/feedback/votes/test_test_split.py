import pandas as pd
import pytest

from rlhf_pipeline.core.config import code_commit
from rlhf_pipeline.core.errors import ConfigurationError, FrameError, StoreError
from rlhf_pipeline.core.frames import frame_hash
from rlhf_pipeline.feedback.votes import Opening, n_test_pairs, open_test_split

PAIRS = pd.DataFrame(
    {"comparison_id": ["c1", "c2", "c3", "c4"], "split": ["train", "test", "calib", "test"]},
    index=[9, 8, 7, 6],
)


def opened(pairs: pd.DataFrame = PAIRS, **more: object) -> tuple[pd.DataFrame, list[Opening]]:
    openings: list[Opening] = []
    return open_test_split(
        pairs, **{"model": "rm@1", "purpose": "accuracy", "record": openings.append, **more}
    ), openings


def test_test_pairs_come_in_order_with_a_recorded_opening() -> None:
    test, (opening,) = opened()
    assert test["comparison_id"].tolist() == ["c2", "c4"]
    assert test.index.tolist() == [0, 1]
    assert (opening.model, opening.purpose, opening.n_pairs, opening.commit) == (
        "rm@1",
        "accuracy",
        2,
        code_commit(),
    )
    assert opening.data_hash == frame_hash(test)
    assert opening.opened_at.utcoffset() is not None
    assert Opening.from_json(opening.model_dump_json()) == opening


def test_without_a_record_there_are_no_test_pairs() -> None:
    def refused(opening: Opening) -> None:
        raise StoreError("no MLflow")

    with pytest.raises(StoreError):
        opened(record=refused)


def test_an_empty_split_is_not_opened() -> None:
    test, openings = opened(PAIRS[PAIRS["split"] == "train"])
    assert test.empty
    assert not openings


def test_counting_test_pairs_does_not_open_them() -> None:
    assert n_test_pairs(PAIRS) == 2


@pytest.mark.parametrize("fields", [{"model": " "}, {"purpose": ""}])
def test_opening_needs_a_model_and_a_purpose(fields: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="model and purpose must not be blank"):
        opened(**fields)


def test_pairs_without_a_split_are_refused() -> None:
    for act in (opened, n_test_pairs):
        with pytest.raises(FrameError, match="no column split"):
            act(PAIRS[["comparison_id"]])


def test_by_default_an_opening_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="rlhf_pipeline"):
        open_test_split(PAIRS, model="rm@1", purpose="accuracy")
    assert "test split opened: rm@1 for accuracy, 2 pairs" in caplog.text
