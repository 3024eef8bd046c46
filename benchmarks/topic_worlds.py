"""Draws a day of judged prompts on known topics, of which one may fail."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.watch.drift.reference import Window

TOPICS = {
    "cooking": "lentils soup oven recipe butter spices dinner vegetables pan flour",
    "travel": "train ticket airport luggage hotel island passport border map journey",
    "law": "contract lease landlord court lawyer clause notice tenant deposit fine",
    "garden": "roses soil seeds watering compost hedge lawn pruning tulips greenhouse",
    "code": "python function loop list variable bug script dictionary error test",
    "health": "headache fever doctor sleep vitamin exercise blood allergy dose muscle",
    "music": "guitar chord melody concert choir rhythm violin lyrics drums piano",
    "money": "loan interest savings tax budget pension invoice bank salary rent",
}
FRAMES = (
    "Please explain to me how {} goes with {} and {}.",
    "What should I know about {}, {} or {}?",
    "Write a short text on {} and {}, with {}.",
    "My question is about {}: is {} better than {}?",
)
N_REFERENCE, N_DAY, BASE_RATE = 200, 600, 0.2


@dataclass(frozen=True)
class TopicDay:
    """The windows of a day, `prompts` (comparison id -> text) and `topics` (comparison id ->
    topic).
    """

    reference: Window
    current: Window
    prompts: dict[str, str]
    topics: dict[str, str]


def draw_topic_day(
    seed: int, failing: str | None = None, *, error_rate: float = BASE_RATE
) -> TopicDay:
    """A day on which the model errs at `error_rate` on the topic `failing`, elsewhere at
    BASE_RATE.
    """
    rng = np.random.default_rng(seed)
    texts, topics = _write_prompts(N_REFERENCE + N_DAY, rng)
    is_day = np.arange(len(texts)) >= N_REFERENCE
    rate = np.where(is_day & (topics == failing), error_rate, BASE_RATE)
    wrong = (rng.random(len(texts)) < rate).astype(float)
    ids = np.array([f"c{i:04d}" for i in range(len(texts))])
    points = embed_by_words(texts)

    def window(inside: npt.NDArray[np.bool_]) -> Window:
        n = int(inside.sum())
        rows = {
            "comparison_id": ids[inside],
            "prompt_id": ids[inside],
            "prompt_length": 1,
            "completion_length": 1,
            "p": 0.7,
            "error": wrong[inside],
            "n_votes": 1,
            "embedding_row": np.arange(n),
        }
        return Window("m", pd.DataFrame(rows), points[inside])

    return TopicDay(
        window(~is_day),
        window(is_day),
        dict(zip(ids.tolist(), texts, strict=True)),
        dict(zip(ids.tolist(), topics.tolist(), strict=True)),
    )


def embed_by_words(texts: list[str]) -> npt.NDArray[np.float32]:
    """Latent semantic analysis: words that occur together point the same way."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    counts = TfidfVectorizer(sublinear_tf=True, stop_words="english").fit_transform(texts)
    points = TruncatedSVD(24, random_state=0).fit_transform(counts)
    return np.asarray(points, dtype=np.float32)


def _write_prompts(n: int, rng: np.random.Generator) -> tuple[list[str], npt.NDArray[np.object_]]:
    names = list(TOPICS)
    topic = rng.integers(len(names), size=n)
    texts = [
        FRAMES[rng.integers(len(FRAMES))].format(
            *rng.choice(TOPICS[names[t]].split(), 3, replace=False)
        )
        for t in topic
    ]
    return texts, np.array(names, dtype=object)[topic]
