"""Names the causes of a rise of the error rate, with evidence and the share each explains."""

import numpy as np
import pandas as pd
from pydantic import Field

from rlhf_pipeline.drift.base import Floats, require_error
from rlhf_pipeline.drift.cause_evidence import collect_evidence, measure_rise, summarise
from rlhf_pipeline.drift.cause_model import NO_RISE, weigh_causes
from rlhf_pipeline.drift.changed_votes import ChangedVotes, describe_votes
from rlhf_pipeline.drift.expected_errors import expect_reference, learn_expected_errors
from rlhf_pipeline.drift.rhythm import RhythmParams, expected_excess
from rlhf_pipeline.drift.stream import Level
from rlhf_pipeline.errors import FrameError, NotEnoughData
from rlhf_pipeline.records import Cause, ChangeCauses, DriftEvent

N_STARTS = 8  # votes tried as the beginning of the change, from the detected one on
MIN_AFTER = 30  # votes after a change at least
YOUNG_VOTES = 1000  # first votes that a model's reference is compared with
LIKELY_ERROR = 50  # votes by which a change is often dated wrongly
CAUSE_VOTES = 1000  # votes after a detection up to which its causes are found again
KNOWN_VOTES = 20_000  # that causes are found in


class CauseParams(RhythmParams):
    """How the causes of a change are found."""

    cause_margin: int = Field(
        default=300,
        ge=0,
        description="Votes by which a change may be dated too early or too late",
    )
    cause_min_before: int = Field(
        default=100,
        ge=1,
        description="Votes before a change from which its level, the annotators and their usual "
        "times are known",
    )
    cause_max_after: int = Field(
        default=2000, ge=50, description="Votes after a change that are read: the first ones"
    )


def find_causes(
    votes: pd.DataFrame,
    change_seq: int,
    params: CauseParams | None = None,
    reference: Level | None = None,
) -> ChangeCauses:
    """Rank the six causes of the change at `change_seq` by the share of the rise that they explain.

    `votes` is an error stream up to now: seq and error, and where they are known category,
    policy_version, source, annotator_id, comparison_id, duration_s, expected_error, p and
    is_left_out. With a column `reward_model`, the latest vote's model is examined; other models'
    votes only tell which annotators are known and how fast they are. With a column `day`, the
    rhythm of the week is no rise; a column `rhythm` says by how much each vote's usual error rate
    is higher, as learnt from more votes than these. `reference` is what is known of a model that
    has few votes before the change.

    Raises FrameError for missing columns, duplicate seqs, and days or hours that cannot be read;
    InvalidScores for an error outside [0, 1]; NotEnoughData if the model has no vote at
    `change_seq` or later.
    """
    params = params or CauseParams()
    rows = _check_votes(votes)
    if "rhythm" not in rows.columns:
        rows["rhythm"] = _learn_rhythm(rows, params)
    own = rows
    if "reward_model" in rows.columns:
        own = rows[rows["reward_model"] == rows["reward_model"].iloc[-1]].reset_index(drop=True)
    n_before = int((own["seq"] < change_seq).sum())
    if n_before == len(own):
        raise NotEnoughData(
            f"The {len(own)} votes on the model end at seq {own['seq'].iloc[-1]}, before the "
            f"change at {change_seq}. Pass the votes after it too."
        )
    own = own.iloc[: n_before + params.cause_max_after]
    is_young = _is_young(own.iloc[:n_before], params, reference)
    margin = n_before if is_young else min(params.cause_margin, n_before // 2)
    settled = own.iloc[: n_before - margin]
    around = own.iloc[n_before - margin :].reset_index(drop=True)
    usual = rows[rows["seq"] < around["seq"].iloc[0]]
    knows_annotators = len(usual) >= params.cause_min_before
    expected = (
        expect_reference(reference.error_rate, reference.stated_odds)
        if reference is not None and is_young
        else learn_expected_errors(settled.assign(error=settled["error"] - settled["rhythm"]))
    )
    changed = describe_votes(
        around,
        settled,
        usual,
        expected,
        knows_annotators=knows_annotators,
        reference=reference if is_young else None,
    )
    level = _level_before(own.iloc[: 0 if is_young else n_before], changed, params, reference)
    before = level.error_rate
    expected_before = float(expected.predict(settled).mean()) if len(settled) else before
    weights = weigh_causes(changed, _starts(margin, len(around)), expected_before)
    after = own.iloc[n_before:]
    expected_after = float(np.clip(before + after["rhythm"].mean(), 0, 1))
    rise = measure_rise(expected_after, level.n, after["error"])
    total = max(sum(weights.rises.values()), rise.low, NO_RISE)
    evidence = dict(collect_evidence(settled, around, changed, weights))
    if not knows_annotators:
        few = f"{len(usual)} votes before the change are too few to know who is new"
        evidence["newcomers"] = evidence["newcomers"] | {"unknown": few}
    causes = tuple(
        Cause(
            name=name,
            share=min(1.0, size / total),
            probability=min(1.0, weights.largest[name]),
            evidence=evidence[name],
        )
        for name, size in sorted(weights.rises.items(), key=lambda item: -item[1])
    )
    return ChangeCauses(
        change_seq=change_seq,
        until_seq=int(own["seq"].iloc[-1]),
        n_before=n_before,
        n_after=len(own) - n_before,
        rise=rise,
        causes=causes,
        summary=summarise(causes, rise),
    )


def examine(
    event: DriftEvent,
    errors: pd.DataFrame,
    reference: Level | None = None,
    params: CauseParams | None = None,
) -> DriftEvent:
    """The event with the causes of its change, found in the votes known by now, at most
    `CAUSE_VOTES` after it. Causes found with fewer votes stay in its evidence, so that decisions
    based on them can be replayed. A replayed event starts nothing, so its causes are not examined.
    """
    params = params or CauseParams()
    known = errors[errors["seq"] <= event.seq + CAUSE_VOTES]
    found = list_causes(event)
    is_complete = bool(found) and not (known["seq"] > found[-1].until_seq).any()
    if event.is_replayed or is_complete or "no_causes" in event.evidence:
        return event
    start = event.seq if event.change_seq is None else event.change_seq
    rows = known.sort_values("seq", ignore_index=True)
    rows["rhythm"] = _learn_rhythm(rows, params)  # which takes weeks, however many votes these have
    try:
        causes = find_causes(rows.tail(KNOWN_VOTES), start, params, reference)
    except NotEnoughData as few:
        return event.model_copy(update={"evidence": event.evidence | {"no_causes": str(few)}})
    if found and causes.until_seq <= found[-1].until_seq:  # `cause_max_after` votes were read
        return event
    record = causes.model_dump(mode="json")
    added = (
        {"later_causes": [*event.evidence.get("later_causes", []), record]}
        if found
        else {"causes": record}
    )
    return event.model_copy(update={"evidence": event.evidence | added})


def list_causes(event: DriftEvent) -> list[ChangeCauses]:
    """The causes stored with an event, the first found first."""
    first = [event.evidence["causes"]] if "causes" in event.evidence else []
    stored = [*first, *event.evidence.get("later_causes", [])]
    return [ChangeCauses.model_validate(causes) for causes in stored]


def _check_votes(votes: pd.DataFrame) -> pd.DataFrame:
    missing = [c for c in ("seq", "error") if c not in votes.columns]
    if missing:
        raise FrameError(f"votes: missing columns {missing}. Pass an error stream with seq, error.")
    duplicate = votes["seq"].duplicated()
    if duplicate.any():
        seq = votes["seq"][duplicate].iloc[0]
        raise FrameError(f"votes: seq {seq} occurs twice. Pass one row per vote.")
    if votes.empty:
        raise NotEnoughData("There are no votes. Pass those before and after the change.")
    for seq, error in zip(votes["seq"].tolist(), votes["error"].tolist(), strict=True):
        require_error(error, "find_causes", seq)
    return votes.sort_values("seq", ignore_index=True)


def _learn_rhythm(rows: pd.DataFrame, params: CauseParams) -> Floats:
    """By how much the usual error rate of each row is higher, as detectors learn it: hasty sessions
    and further votes on a comparison have no part in it.
    """
    if not params.rhythm_weeks or "day" not in rows.columns:
        return np.zeros(len(rows))
    is_read = ~rows.get("is_left_out", pd.Series(False, rows.index)).to_numpy(dtype=bool)
    if "comparison_id" in rows.columns:
        is_read[is_read] = ~rows.loc[is_read, "comparison_id"].duplicated()
    return expected_excess(rows, params.rhythm_weeks, is_read)


def _is_young(before: pd.DataFrame, params: CauseParams, reference: Level | None) -> bool:
    """Whether the reference tells the level before the change: the model has few votes before it,
    or its first votes already err more often than its reference, so that the change began with
    them.
    """
    if reference is None or len(before) < params.cause_min_before:
        return reference is not None
    usual = reference.error_rate + float(before["rhythm"].mean())
    rise = measure_rise(usual, reference.n, before["error"])
    return len(before) < YOUNG_VOTES and bool(rise.low and rise.low > 0)


def _level_before(
    before: pd.DataFrame, changed: ChangedVotes, params: CauseParams, reference: Level | None
) -> Level:
    """The error rate before the change, without the rhythm of the week: of the votes, else of the
    reference, else as stated.
    """
    if len(before) >= params.cause_min_before or (len(before) and reference is None):
        return Level(len(before), float((before["error"] - before["rhythm"]).mean()))
    return reference or Level(0, float(changed.expected[1.0].mean()))


def _starts(margin: int, n: int) -> list[tuple[int, float]]:
    """Votes at which the change may have begun, with the log of how likely each is. A detector that
    was suspicious too early dates a change too early by any number of votes, so the tail is heavy.
    """
    n_after = n - margin
    before = np.linspace(0, margin, N_STARTS // 2, endpoint=False)
    after = n - np.geomspace(n_after, min(MIN_AFTER, n_after), N_STARTS)
    places = np.unique(np.concatenate([before, after]).round().astype(int))
    return [(int(at), -np.log1p(abs(at - margin) / LIKELY_ERROR)) for at in places]
