"""Summaries of the deployed policy by day: reads stored ones, makes those whose inputs changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.drift.policy import PolicyParams, summarise_policy_day
from rlhf_pipeline.drift.reference import LEFT_OUT
from rlhf_pipeline.errors import ArtefactError, FrameError
from rlhf_pipeline.records import PolicyDay, content_hash
from rlhf_pipeline.store import Store

INPUT_STAGES = ("completions", "comparisons")
CODE_VERSION = 1  # increase it when the same completions give other figures


@dataclass(frozen=True)
class PolicySeries:
    """Summaries by day, the new ones among them; or why there are none (`left_out`)."""

    days: Mapping[str, PolicyDay]
    new: Sequence[PolicyDay] = ()
    left_out: str | None = None

    def until(self, day: str, n_days: int) -> list[PolicyDay]:
        """Those of `day` and of the `n_days` before it, oldest first."""
        first = _days_before(day, n_days)[0]
        return [self.days[one] for one in sorted(self.days) if first <= one <= day]


def load_policy_days(
    days: Sequence[str], files: Artefacts, store: Store, params: PolicyParams
) -> PolicySeries:
    """What the reports of `days` need. If a file of another day is broken, the series is left out
    with the reason, so that the reports are still made.
    """
    made = set(files.days("completions"))
    wanted = sorted(made & {one for day in days for one in _days_before(day, params.policy_days)})
    hashes = {
        day: content_hash(CODE_VERSION, content)
        for day, content in files.hash_days(wanted, INPUT_STAGES).items()
    }
    stored = files.read_policy_days(wanted)
    kept = {day: one for day, one in stored.items() if one.rests_on == hashes[day]}
    new = []
    try:
        for day in wanted:
            if day not in kept and (found := _summarise(day, files, store)):
                new.append(found.model_copy(update={"rests_on": hashes[day]}))
    except (ArtefactError, FrameError) as cause:
        return PolicySeries({}, left_out=f"{LEFT_OUT}a day's frames cannot be read. {cause}")
    return PolicySeries(kept | {one.day: one for one in new}, new)


def _summarise(day: str, files: Artefacts, store: Store) -> PolicyDay | None:
    completions, comparisons = (files.read_days(stage, [day]) for stage in INPUT_STAGES)
    return summarise_policy_day(day, completions, comparisons, store.predictions.for_days([day]))


def _days_before(day: str, n_days: int) -> list[str]:
    """`day` and the `n_days` before it, oldest first."""
    last = date.fromisoformat(day)
    return [(last - timedelta(days=n)).isoformat() for n in range(n_days, -1, -1)]
