"""Routes comparisons to people or to the calibrated reward model.

The rule, for the n comparisons it is asked about at once (a day's):

1. People get exactly ceil(`human_feedback_ratio` · n) of them.
2. Confidence is max(p, 1 − p) of the calibrated P(a preferred) that was written first, when the
  comparison was published; without a prediction it is 0.5. `unsure` are those below
  `confidence_threshold`.
3. The places go to the unsure ones first, least confident first (of equal ones by a seeded draw).
4. Places that are left are drawn by seed among the confident ones, so that people keep
  checking the model where it is confident.
5. The reward model answers the other confident ones. Unsure ones beyond the places stay open:
  nobody answers them, and they are listed.

So the share is exact, no unsure comparison is ever left to the model, and the same comparisons,
predictions and parameters give the same routes in any order of rows.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import Any, Protocol

import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.errors import FrameError
from rlhf_pipeline.core.frames import (
    COMPARISONS,
    PREDICTIONS,
    FrameSchema,
    check_frame,
    number,
    text,
    time,
)
from rlhf_pipeline.core.parameters import Parameters
from rlhf_pipeline.core.records import (
    AnnotatorKind,
    Choice,
    NewVote,
    Record,
    content_hash,
    content_id,
)

REASONS = ("unsure", "check", "confident", "beyond_places")

ROUTES = FrameSchema(
    "routes",
    {
        "comparison_id": text("what was routed"),
        "route": text(
            "who judges it: people, machine, or nobody (open)", values=("people", "machine", "open")
        ),
        "reason": text(
            "unsure: below the threshold; check: drawn among the confident; confident; "
            "beyond_places",
            values=REASONS,
        ),
        "confidence": number(
            "max(p, 1 - p) of the calibrated P(a preferred), 0.5 without a prediction",
            low=0.5,
            high=1.0,
        ),
        "p_calibrated": number("calibrated P(a preferred)", nullable=True, low=0.0, high=1.0),
        "reward_model": text("model whose prediction this is", nullable=True),
        "predicted_at": time("when it was made", nullable=True),
    },
    key=("comparison_id",),
)


class RoutingParams(Parameters):
    """The share that people judge, and the confidence at which the reward model may answer the
    rest.
    """

    human_feedback_ratio: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Share of a day's comparisons that people judge, rounded up",
    )
    confidence_threshold: float = Field(
        default=0.8,
        ge=0.5,
        le=1,
        description="Calibrated confidence from which on the reward model may answer what people "
        "do not get",
    )
    routing_seed: int = Field(
        default=0,
        ge=0,
        description="Of the draw among comparisons the reward model is confident of",
    )


class RoutingCounts(Record):
    """Number of comparisons by destination. `n_wanted` judgements and `n_machine_votes` are new
    ones: sending the same routes again adds none.
    """

    n: int
    n_people: int
    n_unsure: int
    n_checks: int
    n_machine: int
    n_open: int
    n_wanted: int = 0
    n_machine_votes: int = 0


class CardQueue(Protocol):
    """The queue from which people get their work: `store.cards`."""

    def offer(
        self,
        comparison_ids: Sequence[str],
        *,
        overlap: int,
        priority: int = 0,
        actor: str = "pipeline",
    ) -> int: ...


class MachineVoteWriter(Protocol):
    """The component that records votes: `store.votes`."""

    def cast_all(self, new_votes: Any) -> Any: ...


def route(
    comparisons: pd.DataFrame, predictions: pd.DataFrame, params: RoutingParams | None = None
) -> pd.DataFrame:
    """Build the ROUTES of COMPARISONS from their PREDICTIONS, people's first; the module docstring
    states the rule.

    Repeats and flagged comparisons are not new work and get no route. Raises FrameError for a
    prediction of another comparison.
    """
    params = params or RoutingParams()
    checked, predicted = check_frame(comparisons, COMPARISONS), _first_predictions(predictions)
    strays = predicted.loc[
        ~predicted["comparison_id"].isin(checked["comparison_id"]), "comparison_id"
    ]
    if len(strays):
        raise FrameError(
            f"{len(strays)} predictions are of comparisons that are not given, first "
            f"{strays.iloc[0]}. Hand in those as well."
        )
    originals = checked[checked["repeat_of"].isna() & checked["flag"].isna()]
    rows = originals[["comparison_id"]].merge(predicted, on="comparison_id", how="left")
    p = rows["p_calibrated"].fillna(0.5)
    draw = [content_hash("routing", params.routing_seed, c) for c in rows["comparison_id"]]
    rows = rows.assign(confidence=p.where(p >= 0.5, 1 - p), draw=draw)
    unsure = rows[rows["confidence"] < params.confidence_threshold].sort_values(
        ["confidence", "draw"]
    )
    confident = rows[rows["confidence"] >= params.confidence_threshold].sort_values("draw")
    places = n_places(params.human_feedback_ratio, len(rows))
    n_checks = max(0, places - len(unsure))
    parts = [
        unsure[:places].assign(route="people", reason="unsure"),
        confident[:n_checks].assign(route="people", reason="check"),
        confident[n_checks:].assign(route="machine", reason="confident"),
        unsure[places:].assign(route="open", reason="beyond_places"),
    ]
    return check_frame(pd.concat(parts)[list(ROUTES.columns)], ROUTES)


def n_places(ratio: float, n: int) -> int:
    """ceil(ratio · n) of the ratio's decimal notation: 0.07 of 100 is 7, though 0.07 * 100 is above
    7.

    >>> n_places(0.3, 10), n_places(0.07, 100), n_places(0.3, 11)
    (3, 7, 4)
    >>> n_places(0.0, 5), n_places(1.0, 5)
    (0, 5)
    """
    return ceil(Fraction(str(ratio)) * n)


def machine_votes(routes: pd.DataFrame) -> list[NewVote]:
    """The reward model's votes, one for each comparison routed to it: the likelier side, with the
    time of the prediction as the time of the vote.

    The key is built from model and comparison, and the time is stored, so the same routes give the
    same votes at any time.
    """
    answered = check_frame(routes, ROUTES).query("route == 'machine'")
    return [
        NewVote(
            comparison_id=row.comparison_id,
            annotator_id=row.reward_model,
            annotator_kind=AnnotatorKind.MACHINE,
            choice=_likelier_side(row.p_calibrated),
            stated_confidence=row.confidence,
            voted_at=row.predicted_at.to_pydatetime(),
            origin="pipeline",
            idempotency_key=f"machine:{content_id(row.reward_model, row.comparison_id)}",
        )
        for row in answered.itertuples()
    ]


def send_routes(
    routes: pd.DataFrame, queue: CardQueue, votes: MachineVoteWriter, *, overlap: int
) -> RoutingCounts:
    """Queue the people's comparisons, `overlap` judgements each, and cast the reward model's votes.
    Sending the same routes again changes nothing.
    """
    people = routes.loc[routes["route"] == "people", "comparison_id"].tolist()
    n_wanted = queue.offer(people, overlap=overlap) if people else 0
    return count_routes(routes).model_copy(
        update={
            "n_wanted": n_wanted,
            "n_machine_votes": votes.cast_all(machine_votes(routes)).n_new,
        }
    )


def count_routes(routes: pd.DataFrame) -> RoutingCounts:
    """Count what `send_routes` would do."""
    by_route, by_reason = routes["route"].value_counts(), routes["reason"].value_counts()
    return RoutingCounts(
        n=len(routes),
        n_people=int(by_route.get("people", 0)),
        n_unsure=int(by_reason.get("unsure", 0)),
        n_checks=int(by_reason.get("check", 0)),
        n_machine=int(by_route.get("machine", 0)),
        n_open=int(by_route.get("open", 0)),
    )


def _likelier_side(p: float) -> Choice:
    if p == 0.5:  # possible only if the threshold is 0.5
        return Choice.TIE
    return Choice.A if p > 0.5 else Choice.B


def _first_predictions(predictions: pd.DataFrame) -> pd.DataFrame:
    """One prediction per comparison: the first, made when the comparison was published."""
    ordered = check_frame(predictions, PREDICTIONS).sort_values(["predicted_at", "reward_model"])
    return ordered.drop_duplicates("comparison_id")[
        ["comparison_id", "p_calibrated", "reward_model", "predicted_at"]
    ]
