import pandas as pd
import pytest
from pydantic import SecretStr

from rlhf_pipeline.calibration.identity import NoCalibration
from rlhf_pipeline.champions import Champions, Judge, not_worse
from rlhf_pipeline.completions import OpenAICompatibleBackend, TemplateBackend
from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import ConfigurationError, ModelNotFound
from rlhf_pipeline.records import ModelVersion
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.store import Store


@pytest.fixture(scope="module")
def champions(tmp_path_factory):
    """Of a project in which nothing was ever registered."""
    home = tmp_path_factory.mktemp("home")
    registry = Registry(f"sqlite:///{home}/mlflow.db", home / "artifacts", "demo")
    with Store.open(f"sqlite:///{home}/store.db", organization="o", project="demo") as store:
        store.migrate()
        yield Champions(store, registry, home / "cache")


def version(number=1):
    return ModelVersion(name="demo.reward_model", version=number, kind="reward_model", uri="runs:/r/m", content_hash="h")


class SureOf:
    """A reward model whose margin is the same for every pair: `margin` for the completion called good."""

    def __init__(self, margin):
        self.margin = margin

    def score(self, prompts, completions, **_):
        import numpy as np

        return np.array([self.margin if text == "good" else 0.0 for text in completions])


def judge(margin, number=1):
    return Judge(version(number), SureOf(margin), None, "none")


def pairs(n, max_seq):
    return pd.DataFrame({"prompt": "q", "chosen": ["good"] * n, "rejected": ["bad"] * n, "max_seq": max_seq})


def test_before_init_the_cure_is_named(champions):
    with pytest.raises(ModelNotFound, match="rlhf init"):
        champions.policy()
    with pytest.raises(ModelNotFound, match="rlhf init"):
        champions.backend(Settings())


def test_before_the_first_reward_model_nobody_judges(champions):
    assert champions.judge() is None


def test_an_unknown_version_is_named(champions):
    with pytest.raises(ModelNotFound, match=r"demo\.reward_model@7"):
        champions.version("demo.reward_model@7")


def test_the_setting_chooses_the_backend(champions):
    assert isinstance(champions.backend(Settings(completion_backend="template")), TemplateBackend)
    there = Settings(completion_backend="openai_compatible", api_model="m", api_key=SecretStr("sk"), base_url="http://127.0.0.1:9/v1")
    assert isinstance(champions.backend(there), OpenAICompatibleBackend)
    with pytest.raises(ConfigurationError, match=r"'parrot'.*template, local, openai_compatible"):
        champions.backend(Settings(completion_backend="parrot"))


def test_the_judge_gives_the_probability_of_the_majoritys_choice():
    p = judge(2.0).p_chosen(pairs(3, 1))
    assert p == pytest.approx([0.8808] * 3, abs=1e-4)
    calibrated = Judge(version(), SureOf(2.0), NoCalibration(), "none@1")
    assert calibrated.p_chosen(pairs(3, 1)) == pytest.approx(p)


def test_the_first_model_is_no_worse_than_none():
    assert not_worse(judge(0.0), None, pairs(1, 1)) == (True, "first reward model")


def test_a_model_that_predicts_worse_is_not_promoted_and_equals_are():
    better, worse = judge(1.5, 2), judge(0.5, 1)
    assert not_worse(better, worse, pairs(10, 1))[0]
    assert not_worse(worse, worse, pairs(10, 1))[0]
    refused, reason = not_worse(worse, better, pairs(10, 1))
    assert not refused
    assert "worse than" in reason
    assert "demo.reward_model@2" in reason


def test_after_a_change_only_pairs_voted_since_then_count():
    """The new model is right about the new taste and wrong about the old one, of which there is more."""

    class Turned(SureOf):
        def score(self, prompts, completions, **_):
            return -super().score(prompts, completions)

    old, new = judge(1.0), Judge(version(2), Turned(1.0), None, "none")
    since = pairs(5, 100).assign(chosen="bad", rejected="good")
    both = pd.concat([pairs(50, 1), since], ignore_index=True)
    assert not not_worse(new, old, both)[0]
    assert not_worse(new, old, both, since_seq=100)[0]
    assert "5 unseen pairs" in not_worse(new, old, both, since_seq=100)[1]
    assert "55 unseen pairs" in not_worse(new, old, both, since_seq=500)[1]
