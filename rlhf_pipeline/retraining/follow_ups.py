"""Finds out whether a retraining asks for another of the same change: a follow-up.

No truth says how far a policy has recovered. The gate knows how much the last training gained on
unseen prompts: as long as that was much, another one is worth its cost; one that gained little ends
the change.
"""

from pydantic import Field

from rlhf_pipeline.parameters import Parameters
from rlhf_pipeline.records import RetrainingResult

# The gate's rules that further votes and a further training may pass; worse facts or another length
# are what more of the same would make worse.
CURABLE = frozenset({"win_rate", "categories"})


class FollowUpParams(Parameters):
    """When one change is answered by more than one retraining."""

    follow_ups: int = Field(
        default=0, ge=0, le=2, description="Most retrainings of one change after the first"
    )
    follow_up_win_rate: float = Field(
        default=0.6,
        ge=0.5,
        le=1,
        description="Lower bound of the gate's win rate from which another training follows a "
        "promoted candidate",
    )


def find_follow_up(last: RetrainingResult | None, params: FollowUpParams) -> str | None:
    """Why the last retraining of a change asks for another, in words; None if it does not."""
    if last is None or last.n_follow_ups >= params.follow_ups:
        return None
    if last.promoted:
        if last.win_rate_low < params.follow_up_win_rate:
            return None
        return (
            f"follow-up of decision {last.parent}: its training still gained, with a win rate of "
            f"at least {last.win_rate_low:.3f}"
        )
    if not last.failed or not CURABLE.issuperset(last.failed):
        return None
    return (
        f"follow-up of decision {last.parent}: the gate refused its candidate by "
        f"{', '.join(last.failed)} alone, and more votes have come"
    )
