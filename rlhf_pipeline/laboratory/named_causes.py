"""One or two causes change the error rate: whether the trigger names the larger, and its answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

from rlhf_pipeline.laboratory.answered_changes import (
    ChangeAnswer,
    answer_change,
    examine_unnoticed,
)
from rlhf_pipeline.laboratory.base import KnownRates, LabBar, LabClaim, Observation, measure_share
from rlhf_pipeline.laboratory.cause_worlds import NAMES, CauseWorld, draw_cause_world
from rlhf_pipeline.laboratory.steady import describe_world
from rlhf_pipeline.records import CauseName, Interval
from rlhf_pipeline.retraining.triggers import RETRAINS, TriggerParams
from rlhf_pipeline.simulation.vote_worlds import draw_votes

CAUSES = "Causes of noticed changes"
PAIRS = tuple(combinations([name for name in NAMES if name != "calibration"], 2))
TITLES: dict[CauseName, str] = {
    "taste": "the taste of everybody changes: .08 to .25 more errors",
    "category": "the taste in one category of 10 to 30 % turns round",
    "newcomers": "30 to 50 % of the votes come from newcomers of the opposite taste",
    "carelessness": "20 to 40 % of the annotators vote at random, in half of the worlds hastily",
    "mix": "40 to 70 % of the prompts are of a harder category",
    "calibration": "stated log odds are 1.8 to 3 times as large, errors are not",
}


@dataclass(frozen=True)
class CauseScenario:
    """A change whose causes are `choices[seed modulo their number]`.

    `is_right` judges the answer; a change that is not noticed counts as `unnoticed`, or not at all.
    """

    name: str
    title: str
    unit: str
    bar: LabBar
    choices: tuple[tuple[CauseName, ...], ...]
    is_right: Callable[[CauseWorld, ChangeAnswer], bool]
    unnoticed: bool | None = None
    group: str = CAUSES
    known_rates: ClassVar[KnownRates | None] = None

    def observe(self, seed: int) -> Observation:
        causes = self.choices[seed % len(self.choices)]
        drawn = draw_cause_world(causes, seed)
        answer = answer_world(drawn, seed)
        is_right = self.unnoticed if answer is None else self.is_right(drawn, answer)
        return Observation(
            world=describe_world(drawn.world),
            claims=(
                LabClaim(
                    subject="cause",
                    truth=", ".join(f"{name} {rise:+.2f}" for name, rise in drawn.rises.items()),
                    claim="not noticed" if answer is None else _describe(answer),
                    is_right=bool(is_right),
                ),
            ),
            n_counted=int(is_right is not None),
            n_counts=int(bool(is_right)),
        )

    def measure(self, observations: Sequence[Observation]) -> Interval:
        return measure_share(observations)


def answer_world(
    drawn: CauseWorld, seed: int, params: TriggerParams | None = None
) -> ChangeAnswer | None:
    """The trigger's answer to a world's change; calibration raises no error rate, so its causes are
    asked for some votes later.
    """
    votes = draw_votes(drawn.world, seed)
    if set(drawn.rises) == {"calibration"}:
        return examine_unnoticed(votes, drawn.at)
    return answer_change(votes, drawn.at, params)


def names_largest(drawn: CauseWorld, answer: ChangeAnswer) -> bool:
    return answer.top == drawn.largest


def retrains(drawn: CauseWorld, answer: ChangeAnswer) -> bool:
    return answer.remedy in RETRAINS


def _describe(answer: ChangeAnswer) -> str:
    likely = [cause for cause in answer.causes.causes if cause.share >= 0.1]
    named = ", ".join(f"{cause.name} {cause.share:.0%}" for cause in likely) or "none"
    return f"{named}: {answer.remedy or 'no decision'} at vote {answer.decided_at:,}"


def _name_largest(
    name: str, title: str, least: float, *choices: tuple[CauseName, ...]
) -> CauseScenario:
    return CauseScenario(
        name,
        title,
        unit="largest cause on top",
        bar=LabBar(limit=least, is_upper=False),
        choices=choices,
        is_right=names_largest,
    )


SINGLE_CAUSES = tuple(_name_largest(f"cause_{name}", TITLES[name], 0.9, (name,)) for name in NAMES)
TWO_CAUSES = _name_largest("two_causes", "two of five causes at one vote", 0.8, *PAIRS)
CARELESS_RETRAINED = CauseScenario(
    "careless_retrained",
    "as cause_carelessness",
    unit="retrains",
    bar=LabBar(limit=0.02, is_upper=True),
    choices=(("carelessness",),),
    is_right=retrains,
    unnoticed=False,
)
TASTE_RETRAINED = CauseScenario(
    "taste_retrained",
    "as cause_taste",
    unit="retrains",
    bar=LabBar(limit=0.95, is_upper=False),
    choices=(("taste",),),
    is_right=retrains,
    unnoticed=False,
)
