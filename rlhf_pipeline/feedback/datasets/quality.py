"""Measures the quality of a data set, 0 to 1, and names what keeps it from becoming ready.

The score is the geometric mean of its parts, so that a set that fails in one part fails. Most parts
are the share of rows without a fault:

- `sides`: no side is blank, and those of a preference differ.
- `agreement`: at least 60 % of the votes are for the preferred side.
- `duplicates`: no earlier row has the same texts.
- `near_duplicates`: no earlier row shares 80 % of its runs of three words.
- `leakage`: no prompt of the evaluation set is the same or nearly the same. The same one keeps a
  set from becoming ready; prompts of one template are often alike.

Two are of the whole set: `length_gap` is 1 where the longer completion is preferred as often as the
shorter, as far as 95 % confidence tells, and falls to 0 where it always or never is;
`label_balance` is 1 where half of the rows of an unpaired set are desirable. A part whose evidence
is missing, such as agreement without votes, is left out.

Near-duplicates are the texts that share a band of MinHashes (Leskovec et al., Mining of Massive
Datasets, chapter 3) and are then as similar as stated.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.core.curation import DatasetQuality, DatasetType, QualityPart
from rlhf_pipeline.core.frames import DATASET_ROWS, check_frame
from rlhf_pipeline.core.intervals import interval_of_share
from rlhf_pipeline.generate.prompts.near_duplicates import jaccard

LEAST_AGREEMENT = 0.6
SIMILARITY = 0.8  # Jaccard, from which texts are near-duplicates
SHINGLE = 3  # words
N_BANDS, BAND = 8, 4  # texts at SIMILARITY share a band with probability 0.985
AT_ONCE = 1_000  # texts, whose runs fit into the processor's cache
MOST_NAMED = 200  # rows of a part
Marks = npt.NDArray[np.bool_]


def measure_quality(
    rows: pd.DataFrame, kind: DatasetType, evaluation_prompts: Sequence[str] = ()
) -> DatasetQuality:
    """The quality of DATASET_ROWS of a data set of type `kind`.

    Without rows the score is 0. Raises FrameError.
    """
    checked = check_frame(rows, DATASET_ROWS)
    if checked.empty:
        problem = "It has no rows. Widen its filters, or add pairs by hand."
        return DatasetQuality(score=0, parts=(), problems=(problem,), n_rows=0)
    texts = _join_texts(checked)
    is_duplicate = texts.duplicated().to_numpy()
    marks: dict[str, Marks] = {
        "sides": _has_empty_sides(checked, kind),
        "duplicates": is_duplicate,
        "near_duplicates": _find_near_duplicates(texts.tolist()) & ~is_duplicate,
    }
    agreement = checked["agreement"].to_numpy()
    if not np.isnan(agreement).all():
        marks["agreement"] = agreement < LEAST_AGREEMENT
    if len(evaluation_prompts):
        marks["leakage"] = _find_leaks(checked["prompt"].tolist(), evaluation_prompts)
    parts = [
        QualityPart(
            name=name,
            value=1 - float(is_faulty.mean()),
            n_rows=int(is_faulty.sum()),
            row_ids=tuple(checked["row_id"][is_faulty].head(MOST_NAMED)),
        )
        for name, is_faulty in marks.items()
    ]
    if kind == "preference":
        parts += _measure_length_gap(checked)
    elif kind == "unpaired":
        is_desirable = checked["label"].fillna(False).to_numpy(dtype=bool)
        share = float(is_desirable.mean())
        parts.append(
            _describe_balance(
                "label_balance", checked["row_id"], is_desirable, max(share, 1 - share)
            )
        )
    score = float(np.prod([part.value for part in parts]) ** (1 / len(parts)))
    broken = {
        "a blank side or two equal sides": marks["sides"],
        "a prompt of the evaluation set": _has_prompts(checked["prompt"], evaluation_prompts),
    }
    problems = [
        f"Rows with {what}: {is_broken.sum():,}, first {checked['row_id'][is_broken].iloc[0]}. "
        "Leave them out, or edit or reject their pairs."
        for what, is_broken in broken.items()
        if is_broken.any()
    ]
    return DatasetQuality(
        score=score, parts=tuple(parts), problems=tuple(problems), n_rows=len(checked)
    )


def _join_texts(rows: pd.DataFrame) -> "pd.Series[str]":
    """All texts of each row."""
    return rows["prompt"] + "\n" + rows["completion"] + "\n" + rows["rejected"].fillna("")


def _has_empty_sides(rows: pd.DataFrame, kind: DatasetType) -> Marks:
    prompt, completion, rejected = (
        rows[name].fillna("").str.strip() for name in ("prompt", "completion", "rejected")
    )
    is_faulty = (prompt == "") | (completion == "")
    if kind == "preference":
        is_faulty |= (rejected == "") | (rejected == completion)
    return np.asarray(is_faulty, dtype=bool)


def _has_prompts(prompts: "pd.Series[str]", evaluation_prompts: Sequence[str]) -> Marks:
    """Whether each prompt is an evaluation prompt, but for case and spacing."""
    plain = {" ".join(text.casefold().split()) for text in evaluation_prompts}
    return np.array([" ".join(text.casefold().split()) in plain for text in prompts], dtype=bool)


def _measure_length_gap(rows: pd.DataFrame) -> list[QualityPart]:
    """Empty where all sides are equally long."""
    gap = rows["completion"].str.len() - rows["rejected"].fillna("").str.len()
    is_unequal = (gap != 0).to_numpy()
    if not is_unequal.any():
        return []
    is_longer = (gap > 0).to_numpy()[is_unequal]
    interval = interval_of_share(float(is_longer.mean()), len(is_longer))
    # of the larger share: few rows prove little
    proven_share = max(interval.low, 1 - interval.high, 0.5)
    return [_describe_balance("length_gap", rows["row_id"][is_unequal], is_longer, proven_share)]


def _describe_balance(
    name: str, row_ids: "pd.Series[str]", is_positive: Marks, larger_share: float
) -> QualityPart:
    """1 where the larger share is a half, 0 where it is everything; names the rows of it."""
    is_larger = is_positive if is_positive.mean() > 0.5 else ~is_positive
    return QualityPart(
        name=name,
        value=2 - 2 * larger_share,
        n_rows=int(is_larger.sum()),
        row_ids=tuple(row_ids[is_larger].head(MOST_NAMED)),
    )


class _Bands:
    """The runs of SHINGLE words of texts, and a code of each band of their MinHashes: texts with
    equal codes are candidates.
    """

    def __init__(self, texts: Sequence[str]):
        # Arrays over all texts at once: 100,000 rows take seconds. An object for each text, as in
        # datasketch, takes a minute.
        words = [[*(text.casefold().split() or [""]), *[""] * (SHINGLE - 1)] for text in texts]
        lengths = np.array([len(text) - SHINGLE + 1 for text in words])
        all_words = np.fromiter(chain.from_iterable(words), dtype=object)
        ids = pd.factorize(all_words)[0].astype(np.uint64)
        draw = np.random.default_rng(0)
        runs = np.zeros(len(ids), dtype=np.uint64)
        for i in range(SHINGLE):
            runs += np.roll(ids, -i) * _draw_odd(draw)
        ends = np.cumsum(lengths + SHINGLE - 1)
        is_start = np.ones(len(ids), dtype=bool)  # of a run; none begins with a filler
        for i in range(1, SHINGLE):
            is_start[ends - i] = False
        self._runs, self._starts = runs[is_start], np.cumsum(lengths) - lengths
        self._ends = self._starts + lengths
        self.codes = np.zeros((len(texts), N_BANDS), dtype=np.uint64)
        factors = [[_draw_odd(draw) for _ in range(3)] for _ in range(N_BANDS * BAND)]
        for first in range(0, len(texts), AT_ONCE):
            some = slice(first, first + AT_ONCE)
            starts, end = self._starts[some], self._ends[some][-1]
            hashes = self._runs[starts[0] : end]
            for i, (factor, shift, weight) in enumerate(factors):
                # multiply-shift hashing: the high bits are well mixed
                mixed = (hashes * factor + shift) >> np.uint64(32)
                least = np.minimum.reduceat(mixed, starts - starts[0])
                self.codes[some, i % N_BANDS] += least * weight

    def runs(self, i: int) -> frozenset[int]:
        return frozenset(self._runs[self._starts[i] : self._ends[i]].tolist())


def _draw_odd(draw: np.random.Generator) -> np.uint64:
    return np.uint64(draw.integers(2**62, dtype=np.uint64) | np.uint64(1))


def _find_near_duplicates(texts: Sequence[str]) -> Marks:
    """Whether an earlier text is similar to each text, (n,). Of the texts with one code each is
    compared with the one before it.
    """
    bands, is_near = _Bands(texts), np.zeros(len(texts), dtype=bool)
    for codes in bands.codes.T:
        order = np.argsort(codes, kind="stable")
        same = np.flatnonzero(codes[order][1:] == codes[order][:-1])
        for earlier, later in zip(order[same], order[same + 1], strict=True):
            if not is_near[later]:
                is_near[later] = jaccard(bands.runs(earlier), bands.runs(later)) >= SIMILARITY
    return is_near


def _find_leaks(prompts: Sequence[str], evaluation_prompts: Sequence[str]) -> Marks:
    """Whether an evaluation prompt is similar to each prompt, (n,)."""
    unique = list(dict.fromkeys(prompts))
    bands = _Bands([*evaluation_prompts, *unique])
    n, leaks = len(evaluation_prompts), set()
    for codes in bands.codes.T:
        for later in n + np.flatnonzero(np.isin(codes[n:], codes[:n])):
            runs = bands.runs(later)
            if any(
                jaccard(bands.runs(earlier), runs) >= SIMILARITY
                for earlier in np.flatnonzero(codes[:n] == codes[later])
            ):
                leaks.add(unique[later - n])
    return np.array([prompt in leaks for prompt in prompts], dtype=bool)
