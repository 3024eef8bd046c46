from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from pydantic import SecretStr

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import (
    ConfigurationError,
    ModelError,
    ModelHashMismatch,
    ModelNotFound,
)
from rlhf_pipeline.core.records import ModelVersion, Promotion
from rlhf_pipeline.feedback.votes import TasteChanges
from rlhf_pipeline.generate.completions import (
    AnthropicBackend,
    OpenAICompatibleBackend,
    TemplateBackend,
)
from rlhf_pipeline.learn.calibration import (
    CalibrationParams,
    fit_calibrator,
    recalibrated_loss,
)
from rlhf_pipeline.learn.calibration.identity import NoCalibration
from rlhf_pipeline.learn.calibration.temperature import TemperatureScaling
from rlhf_pipeline.learn.champions import (
    CalibratedModel,
    Champions,
    Question,
    assess,
    compare_with_champion,
)
from rlhf_pipeline.learn.reward_model.embedding import EmbeddingParams, EmbeddingRewardModel
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.store import Store
from tests.unit.learn.reward_model.tiny_networks import save_tiny_bert
from tests.unit.learn.reward_model.word_pairs import WordEncoder, make_pairs


@pytest.fixture(scope="module")
def champions(tmp_path_factory):
    """Of a project in which nothing was ever registered."""
    home = tmp_path_factory.mktemp("home")
    registry = Registry(f"sqlite:///{home}/mlflow.db", home / "artifacts", "demo")
    with Store.open(f"sqlite:///{home}/store.db") as store:
        store.migrate()
        yield Champions(store, registry, home / "cache")


def version(number=1):
    return ModelVersion(
        name="demo.reward_model",
        version=number,
        kind="reward_model",
        uri="runs:/r/m",
        content_hash="h",
    )


class SureOf:
    """A reward model whose margin is the same for every pair: `margin` for the completion called
    good.
    """

    def __init__(self, margin):
        self.margin = margin

    def score(self, prompts, completions, **_):
        return np.array([self.margin if text == "good" else 0.0 for text in completions])


def judge(margin, number=1):
    return CalibratedModel(version(number), SureOf(margin), None, "none")


def pairs(n, max_seq):
    return pd.DataFrame(
        {
            "comparison_id": [f"c{max_seq}-{i}" for i in range(n)],
            "prompt_id": [f"p{max_seq}-{i}" for i in range(n)],
            "prompt": "q",
            "chosen": ["good"] * n,
            "rejected": ["bad"] * n,
            "max_seq": max_seq,
            "category": "factual",
            "agreement": 0.8,
            "n_votes": 5,
            "chosen_side": ["a", "b"] * (n // 2) + ["a"] * (n % 2),
        }
    )


REST = {"day": "2026-01-01", "margin": 0.5, "annotator_kind": "human"}  # columns no model looks at


def test_project_without_a_policy_names_the_cure(champions):
    with pytest.raises(ModelNotFound, match="rlhf run collection"):
        champions.policy()
    with pytest.raises(ModelNotFound, match="rlhf run collection"):
        champions.backend(Settings())


def promotion(number, name="demo.reward_model"):
    return Promotion(
        model_name=name,
        version=number,
        previous_version=number - 1 or None,
        data_seq=None,
        reason="won",
        actor="test",
    )


def test_an_interrupted_promotion_is_finished_by_the_next_reader(champions, tmp_path):
    for number in (1, 2, 3):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "weights").write_text(str(number))
        with champions.registry.run("training", run_key=str(number)) as run:
            version = champions.registry.register("policy", tmp_path / str(number), run=run)
        if number < 3:
            champions.promote("policy", version, reason="won", actor="test")
    assert champions.store.promotions.champion("demo.policy").previous_version == 1
    champions.store.promotions.record(promotion(3, "demo.policy"))  # then its process was killed
    assert champions.champion("policy").version == 3
    aliased = [champions.registry.get("policy", alias) for alias in ("champion", "previous")]
    assert [each.version for each in aliased] == [3, 2]


def test_versions_deleted_in_mlflow_get_no_alias(champions, tmp_path):
    registry = Registry(champions.registry.tracking.tracking_uri, tmp_path / "artifacts", "gone")
    champions = replace(champions, registry=registry)
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "weights").write_text(str(number))
        with registry.run("training", run_key=str(number)) as run:
            version = registry.register("policy", tmp_path / str(number), run=run)
        champions.promote("policy", version, reason="won", actor="test")
    registry.tracking.client.delete_model_version("gone.policy", "1")
    assert champions.champion("policy").version == 2
    assert registry.aliases("policy") == {2: ("champion",)}
    registry.tracking.client.delete_registered_model("gone.policy")
    assert champions.champion("policy") is None


class Policies:
    """A registry of policies: number -> number of the parent."""

    def __init__(self, parents):
        self.parents = parents

    def get(self, kind, number):
        if int(number) not in self.parents:
            return None
        parent = self.parents[int(number)]
        label = None if parent is None else f"demo.policy@{parent}"
        return version(int(number)).model_copy(update={"name": "demo.policy", "parent": label})


def test_the_base_policy_is_the_oldest_ancestor(champions):
    """Version 3 is a model of one's own, put in place of the line of 1."""
    registry = Policies({1: None, 2: 1, 3: None, 4: 3, 5: 4, 7: 6})
    lines = Champions(champions.store, registry, champions.cache)
    bases = {n: lines.base_policy(registry.get("policy", n)).version for n in (1, 2, 3, 4, 5, 7)}
    assert bases == {1: 1, 2: 1, 3: 3, 4: 3, 5: 3, 7: 7}


def test_without_a_reward_model_there_is_no_judge(champions):
    assert champions.judge() is None


def test_an_unknown_version_is_named(champions):
    with pytest.raises(ModelNotFound, match=r"demo\.reward_model@7"):
        champions.version("demo.reward_model@7")


def test_the_setting_chooses_the_backend(champions):
    assert isinstance(champions.backend(Settings(completion_backend="template")), TemplateBackend)
    there = Settings(
        completion_backend="openai_compatible",
        api_model="m",
        api_key=SecretStr("sk"),
        base_url="http://127.0.0.1:9/v1",
    )
    assert isinstance(champions.backend(there), OpenAICompatibleBackend)
    anthropic = champions.backend(
        Settings(completion_backend="anthropic", api_key=SecretStr("sk")), timeout_s=7
    )
    assert isinstance(anthropic, AnthropicBackend)
    assert (anthropic.provider, anthropic.timeout_s) == ("api.anthropic.com", 7)
    with pytest.raises(ConfigurationError, match=r"'parrot'.*template, local, openai_compatible"):
        champions.backend(Settings(completion_backend="parrot"))


class ByPlace:
    """A model whose last digits depend on where in a batch a text stands, as a network's do."""

    def score(self, prompts, completions, **_):
        return np.array([len(text) / 7 + 1e-9 * place for place, text in enumerate(completions)])


def test_both_orders_sum_to_one_for_every_model():
    questions = [
        Question(prompt=f"ask {i % 5}", completion_a="a" * (1 + i % 7), completion_b="b" * (i % 11))
        for i in range(60)
    ]
    turned = [
        Question(prompt=q.prompt, completion_a=q.completion_b, completion_b=q.completion_a)
        for q in questions
    ]
    serving = CalibratedModel(version(), ByPlace(), NoCalibration(), "none@1")
    there, back = serving.predict(questions), serving.predict(turned)
    for answer, other in zip(there, back, strict=True):
        assert answer.p_raw + other.p_raw == 1.0
        assert answer.p_calibrated + other.p_calibrated == 1.0
    assert len({answer.p_raw for answer in there}) > 10


def test_judge_predicts_the_majority_choice():
    p = judge(2.0).p_chosen(pairs(3, 1))
    assert p == pytest.approx([0.8808] * 3, abs=1e-4)
    calibrated = CalibratedModel(version(), SureOf(2.0), NoCalibration(), "none@1")
    assert calibrated.p_chosen(pairs(3, 1)) == pytest.approx(p)


def test_the_first_model_is_not_refused_for_lack_of_a_champion():
    assert compare_with_champion(judge(0.0), None, pairs(1, 1)) == (True, "first reward model")


class Blind(SureOf):
    """One that knows nothing."""

    def score(self, prompts, completions, **_):
        return 0 * super().score(prompts, completions)


def test_worse_model_is_refused_and_equal_one_promoted():
    better, worse = judge(1.5, 2), CalibratedModel(version(1), Blind(1.5), None, "none")
    assert compare_with_champion(better, worse, pairs(40, 1))[0]
    assert compare_with_champion(
        CalibratedModel(version(3), Blind(1.5), None, "none"), worse, pairs(40, 1)
    )[0]
    refused, reason = compare_with_champion(worse, better, pairs(40, 1))
    assert not refused
    assert "worse than" in reason
    assert "demo.reward_model@2" in reason


def test_overconfidence_alone_neither_wins_nor_loses():
    """A calibrator mends it, so it says nothing of what a model knows."""
    modest, bold = judge(0.7, 1), judge(7.0, 2)
    losses = [
        recalibrated_loss(
            pairs(40, 1), judge.reward_model, CalibrationParams(methods=["temperature"])
        )
        for judge in (modest, bold)
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


def test_without_votes_the_newer_model_serves():
    """Imported days can come without a single pair of the calib split."""
    for nothing in (pairs(0, 1), pairs(4, 1).assign(n_votes=0)):
        promoted, reason = compare_with_champion(judge(0.1, 2), judge(1.0, 1), nothing)
        assert promoted
        assert "no votes of the calib split" in reason


def test_after_a_change_only_pairs_voted_since_then_count():
    """The new model is right about the new taste and wrong about the old one, of which there is
    more.
    """

    class Turned(SureOf):
        def score(self, prompts, completions, **_):
            return -super().score(prompts, completions)

    old, new = judge(1.0), CalibratedModel(version(2), Turned(1.0), None, "none")
    since = pairs(5, 100).assign(chosen="bad", rejected="good")
    both = pd.concat([pairs(50, 1), since], ignore_index=True)
    assert not assess(new, old, both).is_accepted
    verdict = assess(new, old, both, taste_changes=TasteChanges(100))
    assert verdict.is_accepted
    assert "5 unseen pairs" in verdict.reason
    # None since the change: pairs from before it say nothing, so that the champion stays until
    # there is one.
    blind = assess(new, old, both, taste_changes=TasteChanges(500))
    assert (blind.is_accepted, blind.is_refused) == (False, True)
    assert "none of 55 held-out pairs" in blind.reason


def test_champion_wrong_after_a_reversal_is_replaced():
    """Calibrated anew it would be a coin too; but it is not what it serves."""
    reversed_taste = pairs(40, 1).assign(chosen="bad", rejected="good")
    promoted, reason = compare_with_champion(
        CalibratedModel(version(2), Blind(1.0), None, "none"), judge(3.0, 1), reversed_taste
    )
    assert promoted, reason


@pytest.mark.parametrize("seed", range(4))
def test_model_does_not_lose_to_itself(seed):
    """Though the champion's calibrator was fitted on the very pairs they are compared by."""
    fitted_on = make_pairs(160, seed=seed)
    model = EmbeddingRewardModel(
        EmbeddingParams(l2_grid=[0.1], context_penalty_grid=[3.0]), WordEncoder()
    )
    model.fit(fitted_on[fitted_on["split"] == "train"].reset_index(drop=True))
    calib = make_pairs(50, seed=100 + seed).assign(split="calib")
    calibrator, _ = fit_calibrator(calib, model)
    champion, same = (CalibratedModel(version(n), model, calibrator, "fitted@1") for n in (1, 2))
    promoted, reason = compare_with_champion(same, champion, calib)
    assert promoted, reason
    assert "as good as" in reason
    # nor is its calibrator
    assert compare_with_champion(
        CalibratedModel(version(1), model, calibrator, "fitted"), champion, calib
    )[0]


def test_calibrator_is_replaced_only_if_no_worse():
    """The same model: sure of itself beyond what votes say, and mended by a temperature."""
    voted, model = pairs(40, 1), SureOf(6.0)
    mended, _ = fit_calibrator(
        voted.assign(split="calib", **REST), model, CalibrationParams(methods=["temperature"])
    )
    assert isinstance(mended, TemperatureScaling)
    good = CalibratedModel(version(), model, mended, "temperature@1")
    raw = CalibratedModel(version(), model, NoCalibration(), "none")
    is_better, reason = compare_with_champion(raw, good, voted)
    assert not is_better
    assert "through none, worse than" in reason
    assert "through temperature@1 on 40 pairs of the calib split" in reason
    assert compare_with_champion(
        CalibratedModel(version(), model, mended, "temperature"),
        CalibratedModel(version(), model, NoCalibration(), "none@2"),
        voted,
    )[0]
    assert compare_with_champion(raw, CalibratedModel(version(), model, None, "none"), voted) == (
        True,
        "it had no calibrator",
    )
    for nothing in (pairs(0, 1), voted.assign(n_votes=0)):
        assert not compare_with_champion(raw, good, nothing)[0]


class OneVersion:
    """A registry with one version, whose files are in `folder`."""

    def model_name(self, kind):
        return f"demo.{kind}"

    def follow(self, kind, promotion):
        pass

    def __init__(self, folder):
        self._folder = folder

    def get(self, kind, alias):
        return version()

    def fetch_folder(self, model, cache):
        return self._folder


@pytest.fixture
def of_another_encoder(champions, tmp_path):
    """Whose champion was fitted on an encoder that no setting names now."""
    params = EmbeddingParams(l2_grid=[0.1], context_penalty_grid=[3.0])
    EmbeddingRewardModel(params, WordEncoder()).fit(make_pairs(80)).save(tmp_path / "model")
    champions.store.promotions.record(promotion(1))
    return Champions(champions.store, OneVersion(tmp_path / "model"), tmp_path / "cache")


def test_a_champion_on_another_encoder_is_reported_to_its_caller(of_another_encoder):
    lost = of_another_encoder.judge()
    assert lost.label == "demo.reward_model@1"
    assert isinstance(lost.load_error, ModelHashMismatch)
    for use in (
        lambda: lost.p_chosen(pairs(2, 1)),
        lambda: lost.reward_model.features(["q"], ["t"]),
        lambda: lost.reward_model.weights_hash,
    ):
        with pytest.raises(ModelHashMismatch, match="fit the reward model again"):
            use()
    with pytest.raises(ModelHashMismatch):  # who names a version wants that one
        of_another_encoder.judge(version())


def test_champion_with_damaged_files_is_reported(of_another_encoder, tmp_path):
    (tmp_path / "model" / "config.json").write_bytes(b"half a fi")
    assert isinstance(of_another_encoder.judge().load_error, ModelError)


def test_missing_encoder_does_not_disqualify_the_champion(of_another_encoder, tmp_path):
    nowhere = Champions(
        of_another_encoder.store,
        of_another_encoder.registry,
        tmp_path / "cache",
        encoder_name=str(tmp_path),
    )
    with pytest.raises(ModelNotFound, match="encoder"):
        nowhere.judge()


def test_new_model_replaces_an_unloadable_champion(of_another_encoder):
    promoted, reason = compare_with_champion(
        judge(0.0, 2), of_another_encoder.judge(), pairs(40, 1)
    )
    assert promoted
    assert "demo.reward_model@1 cannot be loaded" in reason
    assert "another encoder" in reason or "fitted on encoder" in reason
    assert judge(1.0).load_error is None


class Alternatives:
    """Two encoders, the second named as what to go on with, and a champion fitted on one of them.
    `outage` takes the first away.
    """

    def __init__(self, champions, folder):
        self.folder = folder
        self.first = folder / "first"
        self.second = folder / "second"
        for seed, encoder in enumerate((self.first, self.second)):
            save_tiny_bert(encoder, seed=seed)
        registry = OneVersion(folder / "model")
        champions.store.promotions.record(promotion(1))
        self.champions = Champions(
            champions.store, registry, folder / "cache", encoder_name=f"{self.first},{self.second}"
        )

    def outage(self):
        self.first.rename(self.folder / "away")

    def back(self):
        (self.folder / "away").rename(self.first)


@pytest.fixture
def alternatives(champions, tmp_path):
    return Alternatives(champions, tmp_path)


def test_fallback_serves_until_the_encoder_is_back(alternatives):
    alternatives.outage()
    known = alternatives.champions
    stand_in = known.encoder()
    assert (stand_in.folder, known.encoder()) == (alternatives.second, stand_in), "loaded once"
    alternatives.back()
    first = known.encoder()
    assert (first.folder, first.choice.instead) == (alternatives.first, None)
    alternatives.outage()
    assert known.encoder() is first, "what is loaded needs no hub"
