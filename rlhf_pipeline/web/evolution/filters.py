"""The filters of versions, as the address of the page states them; an empty one takes all."""

from dataclasses import dataclass
from datetime import date

from rlhf_pipeline.api_types.evolution import EvolutionOut
from rlhf_pipeline.web.charts import ChartFilter, DayFilter, Days


@dataclass(frozen=True)
class VersionFilter:
    """Which versions a page's address asks for: by day, and a model by name or one version of it,
    as name@version.
    """

    days: DayFilter = DayFilter()  # noqa: RUF009 (frozen)
    model: str | None = None

    @property
    def chosen(self) -> dict[str, object]:
        return {"since": self.days.since, "until": self.days.until, "model": self.model}

    def takes(self, label: str, day: date) -> bool:
        return self.days.includes(day) and self.model in (None, label, label.rpartition("@")[0])

    def select(self, evolution: EvolutionOut) -> EvolutionOut:
        """The chosen versions."""
        return EvolutionOut(
            policies=tuple(one for one in evolution.policies if self.takes(one.label, one.day)),
            reward_models=tuple(
                one for one in evolution.reward_models if self.takes(one.label, one.day)
            ),
        )


def read_version_filter(days: Days, model: ChartFilter = None) -> VersionFilter:
    return VersionFilter(days, model)


def list_models(evolution: EvolutionOut) -> list[str]:
    """What `model` may be: each model by name, then each of its versions."""
    return [
        one
        for versions in (evolution.policies, evolution.reward_models)
        if versions
        for one in (versions[0].label.rpartition("@")[0], *(each.label for each in versions))
    ]
