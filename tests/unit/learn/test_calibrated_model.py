"""A text in many questions is scored once."""

import numpy as np

from rlhf_pipeline.core.records import ModelVersion
from rlhf_pipeline.learn.champions import CalibratedModel, Question


class Counting:
    def __init__(self):
        self.scored = []

    def score(self, prompts, completions, *, progress=None):
        self.scored += zip(prompts, completions, strict=True)
        return np.array([float(len(text)) for text in completions])


def test_a_text_is_scored_once_over_all_calls():
    model, score_cache = Counting(), {}
    version = ModelVersion(
        name="demo.reward_model",
        version=1,
        kind="reward_model",
        uri="memory",
        content_hash="h",
        data_hash="d",
        data_seq=1,
    )
    judge = CalibratedModel(version, model, None, "none@0")
    questions = [
        Question(prompt="p", completion_a="a" * n, completion_b="b" * (n + 1))
        for n in (1, 2, 3, 1, 2, 3)
    ]
    separate = [
        answer
        for some in (questions[:2], questions[2:])
        for answer in judge.predict(some, score_cache=score_cache)
    ]
    assert len(model.scored) == len(set(model.scored)) == 6
    together = judge.predict(questions)
    assert [answer.score_a for answer in separate] == [answer.score_a for answer in together]
