"""Evaluation sets: frozen from the project's own prompts, versioned, never used twice."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import NotEnoughData, PromptError
from rlhf_pipeline.core.frames import COMPARISONS, check_frame
from rlhf_pipeline.generate.prompts.parameters import SourceParams
from rlhf_pipeline.improve.evaluation import frozen_prompts, prompts_hash
from rlhf_pipeline.improve.evaluation.prompt_set import count_leaked
from rlhf_pipeline.improve.evaluation_sets import PromptSource, freeze, require
from rlhf_pipeline.store import Store

TEMPLATES = PromptSource(SourceParams())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        store.migrate()
        yield store


def own_prompts(folder: Path, n: int = 200, name: str = "own.csv") -> Settings:
    """Settings with a file of `n` prompts, every fourth of category legal."""
    lines = [f"Question {i}?,{'legal' if i % 4 == 0 else 'support'}" for i in range(n)]
    (folder / name).write_text("\n".join(["text,category", *lines]))
    return Settings(home=folder, prompt_source="dataset", prompts_file=folder / name)


DATASET = PromptSource(SourceParams(source="dataset"))


def publish(
    store: Store, prompts: list[str], *, prefix: str = "c", source: str | None = None
) -> None:
    rows = [
        {
            "day": "2026-01-01",
            "comparison_id": f"{prefix}{i}",
            "prompt_id": f"{prefix}p{i}",
            "prompt": prompt,
            "completion_a_id": f"x{i}",
            "completion_b_id": f"y{i}",
            "completion_a": "one",
            "completion_b": "two",
            "model_version_a": "demo.policy@1",
            "model_version_b": "demo.policy@1",
            "category": "legal",
            "repeat_of": None,
            "position": i,
            "seed": 7,
            "source": source,
        }
        for i, prompt in enumerate(prompts)
    ]
    frame = pd.DataFrame(rows, columns=[*COMPARISONS.columns])
    checked = check_frame(frame.drop(columns=[] if source else ["source"]), COMPARISONS)
    store.comparisons.publish(checked, published_at=datetime(2026, 1, 1, tzinfo=UTC))


def test_templates_give_the_shipped_set(store: Store, tmp_path: Path) -> None:
    frozen = freeze(Settings(home=tmp_path), store, TEMPLATES)
    assert (frozen.version, frozen.origin, frozen.n_prompts) == (1, "templates taught", 300)
    assert frozen.prompts_hash == prompts_hash(frozen_prompts())
    pd.testing.assert_frame_equal(
        store.evaluation_sets.prompts(1).sort_values("prompt_id", ignore_index=True),
        frozen_prompts().sort_values("prompt_id", ignore_index=True),
    )
    assert store.audit.verify() == 1


def test_compared_prompts_are_not_drawn(store: Store, tmp_path: Path) -> None:
    settings = own_prompts(tmp_path, n=40)
    used = [f"Question {i}?" for i in range(28)]
    publish(store, used)
    prompts = store.evaluation_sets.prompts(freeze(settings, store, DATASET).version)
    assert not set(prompts["text"]) & set(used)
    publish(store, ["Question 28?", "Question 29?", "Question 30?"], prefix="d")
    assert freeze(own_prompts(tmp_path, n=40, name="other.csv"), store, DATASET) is None


def test_too_few_prompts_are_left_to_be_voted_on(store: Store, tmp_path: Path) -> None:
    few = own_prompts(tmp_path, n=30)
    assert freeze(few, store, DATASET) is None
    with pytest.raises(NotEnoughData, match=r"at least 34 prompts.*RLHF_EVALUATION_FILE"):
        require(few, store)


def test_another_source_or_file_is_a_new_version(store: Store, tmp_path: Path) -> None:
    settings = own_prompts(tmp_path)
    freeze(settings, store, DATASET)
    assert freeze(own_prompts(tmp_path, name="other.csv"), store, DATASET).version == 2
    file = tmp_path / "evaluation.jsonl"
    file.write_text('{"text": "Why?"}\n{"text": "How?"}\n')
    own = settings.model_copy(update={"evaluation_file": file})
    third = freeze(own, store, DATASET)
    assert (third.version, third.n_prompts) == (3, 2)
    assert freeze(own, store, DATASET) == third
    file.write_text('{"text": "Why?"}\n')
    assert freeze(own, store, DATASET).version == 4
    file.write_text('{"text": ""}\n')
    with pytest.raises(PromptError, match=r"evaluation.jsonl.*line 1.*Correct the row"):
        freeze(own, store, DATASET)


def test_project_with_imports_alone_holds_out_prompts_of_the_test_split(
    store: Store, tmp_path: Path
) -> None:
    publish(store, [f"P{i}" for i in range(40)], source="file")
    pairs = pd.DataFrame(
        {
            "prompt_id": [f"p{i}" for i in range(40)],
            "prompt": [f"P{i}" for i in range(40)],
            "category": "instruction",
            "split": ["train", "test"] * 20,
        }
    )
    frozen = freeze(Settings(home=tmp_path), store, pairs=pairs)
    prompts = store.evaluation_sets.prompts(frozen.version)
    assert frozen.origin == "imported comparisons"
    assert len(prompts) == 12
    assert set(prompts["text"]) <= set(pairs.loc[pairs["split"] == "test", "prompt"])


def test_leaked_prompts_are_found_by_id_and_by_text_in_any_case() -> None:
    prompts = frozen_prompts(20)
    own = pd.DataFrame({"prompt_id": ["a", "b"], "prompt": ["What now?", "And then?"]})
    assert count_leaked(own, prompts) == 0
    text = f"  {prompts['text'].iloc[0].upper()}\n"
    assert count_leaked(own.assign(prompt=[text, "And then?"]), prompts) == 1
    assert count_leaked(own.assign(prompt_id=[prompts["prompt_id"].iloc[1], "b"]), prompts) == 1
