"""The two windows that drift compares: a champion's reference, frozen with it, and a day's."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from uuid import uuid4

import numpy as np
import pandas as pd

from rlhf_pipeline.core.conversations import render_transcript
from rlhf_pipeline.core.errors import ArtefactError, FrameError, InvalidScores
from rlhf_pipeline.core.parquet import READ_OPTIONS, WRITE_OPTIONS
from rlhf_pipeline.feedback.votes import NO_CHANGES, TasteChanges
from rlhf_pipeline.watch.drift.base import Floats
from rlhf_pipeline.watch.drift.mixes import Mixes, count_mixes
from rlhf_pipeline.watch.drift.words import hash_words, name_buckets

# prompts, completions -> (n, d) embeddings; the reward model's own features, so that they come from
# its cache.
Embed = Callable[[Sequence[str], Sequence[str]], Floats]

COLUMNS = {
    "comparison_id": "str",
    "prompt_id": "str",
    "prompt_length": "int64",
    "completion_length": "int64",
    "p": "float64",
    "error": "float64",
    "n_votes": "int64",
    "embedding_row": "int64",
    # missing where there is nothing to say
    "score": "float64",
    "prompt_words": "str",
    "completion_words": "str",
}
WORDS = {"prompt_words": "prompt", "completion_words": "completion"}  # column -> text
# of the votes on the window's predictions
VOTE_COLUMNS = {
    "annotator_id": "str",
    "comparison_id": "str",
    "category": "str",
    "expected_error": "float64",
    "error": "float64",
}
MAX_EMBEDDINGS = 1000
MAX_TEXTS = 1000  # prompts whose words are kept; all pairs of both windows' texts are compared
# prefix of the reason for a missing test or picture, unless there are too few rows
LEFT_OUT = "Left out: "
FRAME = "window.parquet"
VOTES = "votes.parquet"
EMBEDDINGS = "embeddings.npy"
META = "window.json"


@dataclass(frozen=True)
class Window:
    """One row per judged comparison of one reward model's out-of-sample predictions.

    `rows`: comparison_id, prompt_id, prompt_length and completion_length (characters, side a), p
    (calibrated P(a preferred)), error (share of the a/b votes that disagree), n_votes,
    embedding_row (-1 = not embedded), score (of side a), prompt_words and completion_words (side
    a; as `hash_words` gives them, of one comparison per prompt). `embeddings`: (n, d) float32 of
    one completion per prompt. `not_embedded`: why there are none, unless there are too few rows.
    `mixes`: what the votes consist of, ties and skips included. `votes`: the single votes on the
    predictions of a reference window (VOTE_COLUMNS), which detectors begin with. `words` names
    buckets of the texts' words; it is not saved. `source` says what a reference is made of that is
    not the model's own.
    """

    model_version: str
    rows: pd.DataFrame
    embeddings: Floats
    not_embedded: str | None = None
    mixes: Mixes = field(default_factory=dict)
    votes: pd.DataFrame = field(default_factory=lambda: _cast_votes(pd.DataFrame()))
    words: Mapping[int, str] = field(default_factory=dict)
    source: str | None = None

    def one_row_per_prompt(self) -> pd.DataFrame:
        """One comparison per prompt: completions of one prompt resemble each other, and a test
        would count them as independent.

        The smallest comparison_id is kept. Ids are content hashes, so the choice is arbitrary and
        reproducible.
        """
        return (
            self.rows.sort_values("comparison_id")
            .drop_duplicates("prompt_id")
            .reset_index(drop=True)
        )

    def save(self, folder: Path) -> None:
        """Write Parquet, npy and JSON to `folder`, all or nothing. Equal windows give equal
        bytes.
        """
        partial = folder.with_name(f".{folder.name}.{uuid4().hex}")
        partial.mkdir(parents=True)
        try:
            for name, content in self._contents().items():
                (partial / name).write_bytes(content)
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    @classmethod
    def find(cls, folder: Path) -> "Window | None":
        """The window of a model, frozen at its registration; None for a model that was never
        calibrated. Raises as `load`.
        """
        return cls.load(folder) if folder.exists() else None

    @classmethod
    def load(cls, folder: Path) -> "Window":
        """Raises ArtefactError naming the folder if a file is missing, unreadable or changed."""
        try:
            contents = {
                name: (folder / name).read_bytes() for name in (FRAME, VOTES, EMBEDDINGS, META)
            }
            meta = json.loads(contents[META])
            if hashlib.sha256(contents[EMBEDDINGS]).hexdigest() != meta["embeddings_hash"]:
                raise ValueError(f"{EMBEDDINGS} was changed since it was written")
            rows = pd.read_parquet(BytesIO(contents[FRAME]), **READ_OPTIONS)
            votes = pd.read_parquet(BytesIO(contents[VOTES]), **READ_OPTIONS)
            embeddings = np.load(BytesIO(contents[EMBEDDINGS]), allow_pickle=False)
            if (len(rows), len(embeddings)) != (meta["n"], meta["n_embeddings"]):
                raise ValueError(
                    f"{len(rows)} rows and {len(embeddings)} embeddings where {META} says {meta}"
                )
            return cls(
                meta["model_version"],
                _cast_columns(rows),
                embeddings,
                mixes=meta["mixes"],
                votes=_cast_votes(votes),
            )
        except Exception as cause:  # decoders raise anything on a damaged file
            raise ArtefactError(
                f"Reference window {folder} cannot be read: {cause}. Restore it from a backup, or "
                "delete the folder and calibrate its reward model again."
            ) from cause

    def _contents(self) -> dict[str, bytes]:
        frame, votes, embeddings = BytesIO(), BytesIO(), BytesIO()
        self.rows.to_parquet(frame, index=False, **WRITE_OPTIONS)
        self.votes.to_parquet(votes, index=False, **WRITE_OPTIONS)
        np.save(embeddings, self.embeddings.astype(np.float32), allow_pickle=False)
        meta = {
            "model_version": self.model_version,
            "n": len(self.rows),
            "n_embeddings": len(self.embeddings),
            "embeddings_hash": hashlib.sha256(embeddings.getvalue()).hexdigest(),
            "mixes": self.mixes,
        }
        return {
            FRAME: frame.getvalue(),
            VOTES: votes.getvalue(),
            EMBEDDINGS: embeddings.getvalue(),
            META: json.dumps(meta, sort_keys=True).encode(),
        }


def reference_window(
    pairs: pd.DataFrame,
    p_chosen: Floats,
    *,
    model_version: str,
    embed: Embed | None = None,
    taste_changes: TasteChanges = NO_CHANGES,
    max_embeddings: int = MAX_EMBEDDINGS,
    scores: tuple[Floats, Floats] | None = None,
    mixes: Mixes | None = None,
) -> Window:
    """From preference pairs of the calib split and the calibrated P(chosen preferred) of each, in
    the pairs' order. `scores` are those of the chosen and of the rejected completions.

    Pairs from before the last of `taste_changes` are left out: a model must not be compared with a
    taste that it no longer follows. A pair's error is the share of its votes that contradict the
    prediction, so that both windows count single votes; pairs without a vote for a side are left
    out, as in a day's window. Raises FrameError for a pair of another split, InvalidScores for a p
    outside [0, 1].
    """
    wrong = pairs.loc[pairs["split"] != "calib", ["comparison_id", "split"]]
    if len(wrong):
        raise FrameError(
            f"Reference window: pair {wrong.iloc[0, 0]} is of split {wrong.iloc[0, 1]}. Give only "
            "pairs of split calib."
        )
    p_chosen = _require_probabilities(p_chosen, len(pairs))
    keep = (pairs["n_votes"] > 0).to_numpy() & taste_changes.is_current(pairs)
    pairs, p_chosen = pairs[keep], p_chosen[keep]
    score_chosen, score_rejected = (
        (np.full(len(pairs), np.nan),) * 2
        if scores is None
        else (np.asarray(side, dtype=float)[keep] for side in scores)
    )
    chosen_is_a = (pairs["chosen_side"] == "a").to_numpy()
    missed = np.where(
        p_chosen > 0.5, 1 - pairs["agreement"], np.where(p_chosen < 0.5, pairs["agreement"], 0.5)
    )
    texts = pd.DataFrame(
        {
            "prompt": pairs["prompt"],
            "completion": pairs["chosen"].where(chosen_is_a, pairs["rejected"]),
        }
    )
    rows = pd.DataFrame(
        {
            "comparison_id": pairs["comparison_id"],
            "prompt_id": pairs["prompt_id"],
            "p": np.where(chosen_is_a, p_chosen, 1 - p_chosen),
            "error": missed,
            "n_votes": pairs["n_votes"],
            "score": np.where(chosen_is_a, score_chosen, score_rejected),
        }
    )
    window = _build_window(model_version, rows, texts, embed, max_embeddings)
    return replace(window, mixes=mixes or {})


def judge_votes(votes: pd.DataFrame, p_by_comparison: "pd.Series[float]") -> pd.DataFrame:
    """People's votes for a side of the predicted comparisons, as errors of the predictions.

    `votes`: annotator_id, comparison_id, category, choice. `p_by_comparison`: calibrated P(a
    preferred) by comparison_id.
    """
    p = votes["comparison_id"].map(p_by_comparison)
    is_judged = p.notna() & (p != 0.5) & votes["choice"].isin(["a", "b"])
    rows, p = votes[is_judged], p[is_judged]
    return _cast_votes(
        rows.assign(
            expected_error=np.minimum(p, 1 - p),
            error=((p > 0.5) != (rows["choice"] == "a")).astype(float),
        )
    )


def current_window(
    reflections: pd.DataFrame,
    comparisons: pd.DataFrame,
    *,
    model_version: str,
    embed: Embed | None = None,
    not_embedded: str | None = None,
    max_embeddings: int = MAX_EMBEDDINGS,
) -> Window:
    """From a day's reflection rows of one model and the comparisons they are about; only judged
    comparisons count.

    Without `embed`, `not_embedded` gives the reason, which reports show instead of a comparison of
    embeddings. Ties and unjudged rows are left out because the reference has none: they would shift
    lengths and confidence by themselves. `mixes` counts them too, as the reference's do. Raises
    FrameError naming a comparison that is missing.
    """
    mine = reflections[reflections["reward_model"] == model_version]
    predictions = mine[mine["is_error"].notna()]
    grouped = predictions.assign(error=predictions["is_error"].astype(float)).groupby(
        "comparison_id", sort=True
    )
    rows = grouped.agg(
        p=("p_calibrated", "first"),
        error=("error", "mean"),
        n_votes=("error", "size"),
        score=("score_a", "first"),
    ).reset_index()
    lost = rows.loc[~rows["comparison_id"].isin(comparisons["comparison_id"]), "comparison_id"]
    if len(lost):
        raise FrameError(
            f"{len(lost)} judged comparisons are missing from the given comparisons, first "
            f"{lost.iloc[0]}. Give those of the same day."
        )
    prompts = comparisons[["comparison_id", "prompt_id", "prompt", "completion_a"]]
    joined = rows.merge(prompts, on="comparison_id", how="left", validate="one_to_one")
    _require_probabilities(joined["p"].to_numpy(dtype=float), len(joined))
    texts = joined[["prompt", "completion_a"]].rename(columns={"completion_a": "completion"})
    window = _build_window(
        model_version, joined.drop(columns=["prompt", "completion_a"]), texts, embed, max_embeddings
    )
    return replace(
        window,
        not_embedded=None if embed is not None else not_embedded,
        mixes=count_mixes(mine[mine["vote_id"].notna()], comparisons),
    )


def _build_window(
    model_version: str,
    rows: pd.DataFrame,
    texts: pd.DataFrame,
    embed: Embed | None,
    max_embeddings: int,
) -> Window:
    texts = texts.assign(prompt=texts["prompt"].map(render_transcript))
    rows = rows.assign(
        prompt_length=texts["prompt"].map(len),
        completion_length=texts["completion"].map(len),
        embedding_row=-1,
        **dict.fromkeys(WORDS),
    )
    # so that the order of the given rows never matters
    order = rows["comparison_id"].argsort().to_numpy()
    rows, texts = rows.iloc[order].reset_index(drop=True), texts.iloc[order].reset_index(drop=True)
    prompts = rows.drop_duplicates("prompt_id").index
    read, first = prompts[:MAX_TEXTS], prompts[:max_embeddings]
    for column, text in WORDS.items():
        rows.loc[read, column] = texts[text][read].map(hash_words)
    words = name_buckets([*texts["prompt"][read], *texts["completion"][read]])
    if embed is None or len(first) == 0:
        nothing = np.zeros((0, 0), dtype=np.float32)
        return Window(model_version, _cast_columns(rows), nothing, words=words)
    embeddings = np.asarray(
        embed(texts["prompt"][first].tolist(), texts["completion"][first].tolist()),
        dtype=np.float32,
    )
    if embeddings.ndim != 2 or len(embeddings) != len(first) or not np.isfinite(embeddings).all():
        raise InvalidScores(
            f"{len(first)} texts gave embeddings of shape {embeddings.shape}, or NaN or infinity "
            "among them. Check the encoder."
        )
    rows.loc[first, "embedding_row"] = np.arange(len(first))
    return Window(model_version, _cast_columns(rows), embeddings, words=words)


def _cast_votes(votes: pd.DataFrame) -> pd.DataFrame:
    return votes.reindex(columns=list(VOTE_COLUMNS)).astype(VOTE_COLUMNS).reset_index(drop=True)


def _cast_columns(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[list(COLUMNS)].astype(COLUMNS)


def _require_probabilities(values: Floats, n: int) -> Floats:
    p = np.asarray(values, dtype=float)
    if p.shape != (n,):
        raise InvalidScores(
            f"{n} rows, but probabilities of shape {p.shape}. Give one per row, in the same order."
        )
    bad = ~((p >= 0) & (p <= 1))
    if bad.any():
        raise InvalidScores(
            f"{int(bad.sum())} of {n} probabilities are outside [0, 1] or NaN, first at row "
            f"{int(bad.argmax())}. Check the calibrator."
        )
    return p
