"""Wherever an accuracy is shown, its noise ceiling is too."""

from pathlib import Path

import pandas as pd

from rlhf_pipeline.application.assets.delivery import StageReport
from rlhf_pipeline.application.assets.delivery import _build_metadata as metadata_of

ROOT = Path(__file__).parent.parent


def test_no_page_shows_an_accuracy_without_its_ceiling() -> None:
    pages = [
        p
        for p in (ROOT / "rlhf_pipeline" / "web").rglob("*")
        if p.suffix in {".html", ".js", ".jinja"}
    ]
    texts = {path.name: path.read_text(encoding="utf-8").lower() for path in pages}
    assert texts
    assert (
        sorted(name for name, text in texts.items() if "accuracy" in text and "ceiling" not in text)
        == []
    )


def test_the_ui_states_an_unknown_ceiling() -> None:
    def make_metadata(**numbers: float) -> dict[str, object]:
        return metadata_of(pd.DataFrame({"x": [1]}), numbers, StageReport("headline", numbers))

    assert (
        make_metadata(test_accuracy=0.7)["noise_ceiling"]
        == "unknown: no overlapping votes and no repeated judgements"
    )
    assert make_metadata(test_accuracy=0.7, noise_ceiling=0.8)["noise_ceiling"] == 0.8
    assert str(make_metadata(error_rate=0.3)["noise_ceiling"]).startswith("unknown")
    since = make_metadata(test_accuracy_since_change=0.7, noise_ceiling=0.8)
    # that of all votes is not it
    assert str(since["noise_ceiling_since_change"]).startswith("unknown")
    for others in ({"token_accuracy": 0.5}, {"n_pairs": 3.0}):
        assert "noise_ceiling" not in make_metadata(**others)
