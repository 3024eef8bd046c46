"""Computes chance-corrected agreement: Krippendorff's alpha, Fleiss' and Cohen's kappa.

Votes have three categories: a, b, or neither (`tie`, `both_bad`). Skips, machine votes and repeats,
which swap the sides, are left out. Kappas and alpha are 1 for full agreement and 0 for chance
agreement. They are None if no comparison has two votes, or if all votes are in one category.

If every comparison has the same agreement, every bootstrap resample has it too and the interval
would be empty whatever the sample size. Then the interval is Wilson's of the agreement for the
number of prompts, corrected by the same chance agreement.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pandas as pd

from rlhf_pipeline.frames import VOTES, FrameSchema, check_frame, integer, number, text
from rlhf_pipeline.intervals import (
    SAME,
    BootstrapParams,
    group_index,
    percentile_interval,
    resampled_totals,
    wilson_bounds,
)
from rlhf_pipeline.records import Choice, Interval
from rlhf_pipeline.votes.counting import drop_machine_votes

Floats = npt.NDArray[np.float64]
# per row of sums: observed agreement of two votes on a comparison, and agreement expected by chance
Agreements = tuple[Floats, Floats]

ANSWERS = {Choice.A: 0, Choice.B: 1, Choice.TIE: 2, Choice.BOTH_BAD: 2}
N_ANSWERS = 3
MOST_ANNOTATORS = 300

PAIRWISE_KAPPA = FrameSchema(
    "pairwise_kappa",
    {
        "annotator_1": text("pseudonym, the smaller of the two"),
        "annotator_2": text("pseudonym of the other"),
        "n": integer("comparisons judged by both", low=1),
        "agreement": number("share of these with the same category", low=0.0, high=1.0),
        "kappa": number(
            "Cohen's kappa; missing if chance agreement is 1", nullable=True, low=-1.0, high=1.0
        ),
        "kappa_low": number("lower end of the interval of kappa", nullable=True, low=-1.0),
        "kappa_high": number("upper end of the interval of kappa", nullable=True, high=1.0),
    },
    key=("annotator_1", "annotator_2"),
)


def krippendorff_alpha(
    votes: pd.DataFrame, params: BootstrapParams | None = None
) -> Interval | None:
    """Nominal alpha of counting VOTES, with any number per comparison (Krippendorff 2011); the
    bootstrap resamples prompts.
    """
    return _measure_agreement(votes, _alpha_parts, _alpha_agreements, params)


def fleiss_kappa(votes: pd.DataFrame, params: BootstrapParams | None = None) -> Interval | None:
    """Kappa of counting VOTES over comparisons with at least two votes, weighted equally (Fleiss
    1971); the bootstrap resamples prompts.
    """
    return _measure_agreement(votes, _fleiss_parts, _fleiss_agreements, params)


def pairwise_kappa(
    votes: pd.DataFrame, *, min_overlap: int = 10, most_annotators: int = MOST_ANNOTATORS
) -> pd.DataFrame:
    """PAIRWISE_KAPPA of each two annotators with at least `min_overlap` common comparisons (Cohen
    1960), by annotators.

    Limited to the `most_annotators` annotators with the most votes, because thousands make millions
    of pairs. Intervals are Wilson's of the agreement at 95 %, corrected by the same chance
    agreement, which is treated as known, as in Cohen's standard error.
    """
    from scipy.sparse import csr_array

    judged = _first_judgements(votes).drop_duplicates(
        ["comparison_id", "annotator_id"], keep="last"
    )
    busy = (
        judged["annotator_id"]
        .value_counts()
        .sort_index()
        .sort_values(ascending=False, kind="stable")
        .head(most_annotators)
    )
    judged = judged[judged["annotator_id"].isin(busy.index)]
    names, who = np.unique(judged["annotator_id"].to_numpy(dtype=str), return_inverse=True)
    comparison, n_names = pd.factorize(judged["comparison_id"])[0], len(names)
    # One row per category and annotator, one column per comparison: products of rows count how
    # often two annotators gave these two categories on the same comparison.
    said = csr_array(
        (np.ones(len(judged)), (_encode_answers(judged) * n_names + who, comparison)),
        shape=(N_ANSWERS * n_names, int(comparison.max(initial=-1)) + 1),
    )
    together = (said @ said.T).toarray().reshape(N_ANSWERS, n_names, N_ANSWERS, n_names)
    one, other = np.triu_indices(n_names, 1)
    tables = together[:, one, :, other]  # (pairs, categories of one, categories of the other)
    n = tables.sum(axis=(1, 2))
    is_known = n >= min_overlap
    tables = tables[is_known]
    n = n[is_known]
    one = one[is_known]
    other = other[is_known]
    agreement = np.trace(tables, axis1=1, axis2=2) / n
    by_chance = (tables.sum(axis=1) * tables.sum(axis=2)).sum(axis=1) / n**2
    low, high = wilson_bounds(agreement, n)
    high = np.maximum(high, agreement)  # rounding can put it below full agreement
    frame = pd.DataFrame(
        {
            "annotator_1": names[one],
            "annotator_2": names[other],
            "n": n.astype(np.int64),
            "agreement": agreement,
            "kappa": _correct_for_chance(agreement, by_chance),
            "kappa_low": np.maximum(_correct_for_chance(low, by_chance), -1.0),
            "kappa_high": _correct_for_chance(high, by_chance),
        }
    )
    return check_frame(frame, PAIRWISE_KAPPA)


def _measure_agreement(
    votes: pd.DataFrame,
    parts_of: Callable[[Floats], Floats],
    measure: Callable[[Floats], Agreements],
    params: BootstrapParams | None,
) -> Interval | None:
    params = params or BootstrapParams()
    judged = _first_judgements(votes)
    codes, ids = pd.factorize(judged["comparison_id"], sort=True)
    prompts = judged["prompt_id"].to_numpy()[np.unique(codes, return_index=True)[1]]
    counts = (
        np.bincount(codes * N_ANSWERS + _encode_answers(judged), minlength=len(ids) * N_ANSWERS)
        .reshape(-1, N_ANSWERS)
        .astype(np.float64)
    )
    overlapping = counts.sum(axis=1) >= 2
    if not overlapping.any():
        return None
    parts = parts_of(counts[overlapping])
    agreement, by_chance = measure(parts.sum(axis=0)[None])
    value = float(_correct_for_chance(agreement, by_chance)[0])
    if np.isnan(value):
        return None
    index = group_index(prompts[overlapping], int(overlapping.sum()))
    n_groups = int(index.max()) + 1
    found = percentile_interval(
        value,
        _correct_for_chance(*measure(resampled_totals(parts, index, params))),
        int(overlapping.sum()),
        params,
        n_groups,
    )
    each, _ = measure(parts)
    if np.ptp(each) > SAME:
        return found
    low, high = (
        float(_correct_for_chance(end, by_chance)[0])
        for end in wilson_bounds(agreement, n_groups, params.level)
    )
    return found.model_copy(
        update={"low": max(-1.0, min(low, found.low)), "high": min(1.0, max(high, found.high))}
    )


def _first_judgements(votes: pd.DataFrame) -> pd.DataFrame:
    checked = drop_machine_votes(check_frame(votes, VOTES))
    return checked[checked["choice"].isin(ANSWERS) & checked["repeat_of"].isna()]


def _encode_answers(judged: pd.DataFrame) -> npt.NDArray[np.int64]:
    return np.asarray(
        judged["choice"].map({str(choice): number for choice, number in ANSWERS.items()}),
        dtype=np.int64,
    )


def _alpha_parts(counts: Floats) -> Floats:
    """Per comparison: coincidences of equal categories, and counts per category. Alpha is computed
    from their sums.
    """
    equal = (counts * (counts - 1)).sum(axis=1) / (counts.sum(axis=1) - 1)
    return np.column_stack([equal, counts])


def _alpha_agreements(sums: Floats) -> Agreements:
    equal, given = sums[:, 0], sums[:, 1:]
    n = given.sum(axis=1)
    # two votes drawn without replacement
    return equal / n, 1 - (n**2 - (given**2).sum(axis=1)) / (n * (n - 1))


def _fleiss_parts(counts: Floats) -> Floats:
    n = counts.sum(axis=1)
    return np.column_stack(
        [(counts * (counts - 1)).sum(axis=1) / (n * (n - 1)), np.ones(len(counts)), counts]
    )


def _fleiss_agreements(sums: Floats) -> Agreements:
    share = sums[:, 2:] / sums[:, 2:].sum(axis=1, keepdims=True)
    return sums[:, 0] / sums[:, 1], (share**2).sum(axis=1)


def _correct_for_chance(agreement: Floats, by_chance: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(by_chance < 1 - 1e-12, (agreement - by_chance) / (1 - by_chance), np.nan)
