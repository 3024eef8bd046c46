import zlib

import numpy as np
import pytest

from rlhf_pipeline.generate.policy.causal_lm import GeneratedText
from rlhf_pipeline.improve.canaries import draw_canaries, measure_exposure, plant
from rlhf_pipeline.simulation.testing.strategies import build_pairs


class Memory:
    """Likelihoods by a hash of the text, but those of the texts that were learnt by heart; says the
    first `n_said` of these.
    """

    def __init__(self, learnt=(), n_said=0):
        self.learnt, self.n_said = list(learnt), n_said

    def log_likelihood(self, prompts, completions):
        sums = [
            1.0 if text in self.learnt else -zlib.crc32((prompt + text).encode()) / 2**32
            for prompt, text in zip(prompts, completions, strict=True)
        ]
        return np.array(sums), np.ones(len(sums), dtype=int)

    def generate(self, prompts, **_):
        texts = self.learnt[: self.n_said] + ["The code is 1."] * len(prompts)
        return [GeneratedText(text, 1, 1, "stop") for text in texts[: len(prompts)]]


def test_secrets_learnt_by_heart_rank_first():
    canaries = draw_canaries(16, "data")
    learnt = Memory([canary.secret for canary in canaries], n_said=3)
    exposed = measure_exposure(learnt, canaries, "data")
    assert (exposed.exposure, exposed.n_first, exposed.n_said) == (8.0, 16, 3)
    assert exposed.exposure > exposed.limit


def test_chance_exceeds_the_limit_in_one_of_a_hundred_candidates():
    exposures = [
        measure_exposure(Memory(), draw_canaries(4, f"data {n}"), f"data {n}") for n in range(300)
    ]
    assert sum(each.exposure > each.limit for each in exposures) <= 9
    mean = np.mean([each.exposure for each in exposures])
    assert mean == pytest.approx(1 / np.log(2), abs=0.15)


def test_canaries_are_the_same_for_one_set_and_others_for_another():
    assert draw_canaries(3, "data") == draw_canaries(3, "data")
    secrets = {canary.secret for canary in draw_canaries(3, "data")}
    assert not secrets & {canary.secret for canary in draw_canaries(3, "other")}


def test_planted_rows_are_added_to_a_copy():
    rows = build_pairs()
    planted = plant(rows, draw_canaries(2, "data"))
    assert len(planted) == len(rows) + 2
    assert (planted["origin"] == "canary").sum() == 2
    assert not (rows["origin"] == "canary").any()
