"""Decides when the next reward model is due: the first, a refit, or another try after a refusal."""

from dataclasses import dataclass

from rlhf_pipeline.config import Settings
from rlhf_pipeline.store import Store


@dataclass(frozen=True)
class NextFit:
    """Voted comparisons beyond what a model learnt from, and how many the next fit needs."""

    after: str  # version of that model, 0 before the first; a refused one is named so
    n: int
    needed: int
    data_seq: int = 0  # last vote that model learnt from

    @property
    def shortage(self) -> str | None:
        """What is missing, in words; None where there are enough."""
        known = "nothing" if self.after == "0" else self.after
        return (
            f"{self.n} of {self.needed} voted comparisons beyond {known}"
            if self.n < self.needed
            else None
        )


def plan_next_fit(settings: Settings, store: Store, *, up_to_seq: int | None = None) -> NextFit:
    """The next fit, by votes up to that seq (default: all).

    A replay (`up_to_seq`) decides by itself when to calibrate an uncalibrated champion.
    """
    champion = store.promotions.champion(settings.reward_model)
    latest = store.calibrations.of_latest_fit()
    refusal = latest.refusal if latest is not None else None
    if (
        latest is not None
        and refusal is not None
        and (champion is None or latest.reward_model != champion.label)
    ):
        after = f"refused-{latest.reward_model.rpartition('@')[2]}"
        data_seq, needed = refusal.data_seq, settings.retry_after_pairs
    elif champion is not None:
        # an uncalibrated champion is refitted as soon as a few more pairs may calibrate it
        is_short = up_to_seq is None and is_uncalibrated(settings, store)
        after, data_seq = str(champion.version), champion.data_seq or 0
        needed = settings.retry_after_pairs if is_short else settings.refit_after_pairs
    else:
        after, data_seq, needed = "0", 0, settings.min_new_pairs
    n = store.votes.n_voted_comparisons(after_seq=data_seq, up_to_seq=up_to_seq)
    return NextFit(after, n, needed, data_seq)


def is_uncalibrated(settings: Settings, store: Store) -> bool | None:
    """Whether the champion serves raw probabilities because there were too few pairs to calibrate
    it; None before the first champion.
    """
    champion = store.promotions.champion(settings.reward_model)
    latest = store.calibrations.latest_serving(champion.label) if champion else None
    return not latest[0].candidates if latest else None
