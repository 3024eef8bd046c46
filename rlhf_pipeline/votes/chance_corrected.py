"""Agreement beyond what chance gives: Krippendorff's alpha, Fleiss' and Cohen's kappa. Knows a
frame of votes; knows no model.

What counts as one answer: a, b, or neither (`tie`, `both_bad`). Skips, machine votes and repeats,
which show the sides swapped, are left out. Kappas and alpha are 1 where all agree, 0 where they
agree as often as chance, None where nothing can be said: no comparison has two votes, or everybody
always gave the same answer, which chance alone explains.

Where every comparison has the same agreement (all agree, or all are split alike), so has every
resample, and a bootstrap would claim certainty of six as of six thousand. There the ends are
Wilson's of the agreement for the number of prompts, corrected by the same chance.
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
from rlhf_pipeline.votes.annotator_kinds import drop_machine_votes

Floats = npt.NDArray[np.float64]
# of each row of sums: how often two votes on a comparison agree, and how often they would by chance
Agreements = tuple[Floats, Floats]

ANSWERS = {Choice.A: 0, Choice.B: 1, Choice.TIE: 2, Choice.BOTH_BAD: 2}
N_ANSWERS = 3
MOST_ANNOTATORS = 300

PAIRWISE_KAPPA = FrameSchema(
    "pairwise_kappa",
    {
        "annotator_1": text("pseudonym, the smaller of the two"),
        "annotator_2": text("pseudonym of the other"),
        "n": integer("comparisons both judged", low=1),
        "agreement": number("share of them with the same answer", low=0.0, high=1.0),
        "kappa": number(
            "Cohen's kappa; missing where chance explains all", nullable=True, low=-1.0, high=1.0
        ),
        "kappa_low": number("lower end of its interval", nullable=True, low=-1.0),
        "kappa_high": number("upper end of its interval", nullable=True, high=1.0),
    },
    key=("annotator_1", "annotator_2"),
)


def krippendorff_alpha(
    votes: pd.DataFrame, params: BootstrapParams | None = None
) -> Interval | None:
    """Nominal alpha of VOTES that count, any number of them per comparison; the bootstrap draws
    prompts (Krippendorff 2011).
    """
    return _measure_agreement(votes, _alpha_parts, _alpha_agreements, params)


def fleiss_kappa(votes: pd.DataFrame, params: BootstrapParams | None = None) -> Interval | None:
    """Kappa of VOTES that count over comparisons with at least two votes, each weighing the same
    (Fleiss 1971); the bootstrap draws prompts.
    """
    return _measure_agreement(votes, _fleiss_parts, _fleiss_agreements, params)


def pairwise_kappa(
    votes: pd.DataFrame, *, min_overlap: int = 10, most_annotators: int = MOST_ANNOTATORS
) -> pd.DataFrame:
    """PAIRWISE_KAPPA of all two annotators who judged `min_overlap` comparisons in common (Cohen
    1960), by annotators.

    Of more than `most_annotators` those who judged most: thousands make millions of pairs.
    Intervals are Wilson's of the agreement at 95 %, corrected by the same chance: it is taken as
    known, as in Cohen's standard error.
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
    # A row per answer and annotator, a column per comparison: the products of rows count how often
    # two said these two things of the same.
    said = csr_array(
        (np.ones(len(judged)), (_encode_answers(judged) * n_names + who, comparison)),
        shape=(N_ANSWERS * n_names, int(comparison.max(initial=-1)) + 1),
    )
    together = (said @ said.T).toarray().reshape(N_ANSWERS, n_names, N_ANSWERS, n_names)
    one, other = np.triu_indices(n_names, 1)
    tables = together[:, one, :, other]  # (pairs, answers of the one, answers of the other)
    n = tables.sum(axis=(1, 2))
    is_known = n >= min_overlap
    tables, n, one, other = tables[is_known], n[is_known], one[is_known], other[is_known]
    agreement = np.trace(tables, axis1=1, axis2=2) / n
    by_chance = (tables.sum(axis=1) * tables.sum(axis=2)).sum(axis=1) / n**2
    low, high = wilson_bounds(agreement, n)
    high = np.maximum(high, agreement)  # of full agreement the last bit may be missing
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
    """Coincidences of equal answers, and how often each answer was given; sums of rows are what
    alpha is made of.
    """
    equal = (counts * (counts - 1)).sum(axis=1) / (counts.sum(axis=1) - 1)
    return np.column_stack([equal, counts])


def _alpha_agreements(sums: Floats) -> Agreements:
    equal, given = sums[:, 0], sums[:, 1:]
    n = given.sum(axis=1)
    # Two of all answers drawn without putting the first back.
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
