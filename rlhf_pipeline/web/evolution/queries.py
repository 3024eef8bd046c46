"""Composes the versions of policies and reward models from promotions, gate decisions and files."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime

from rlhf_pipeline.api_types.project import DecisionOut
from rlhf_pipeline.errors import MissingPartition
from rlhf_pipeline.records import (
    Evaluation,
    GateDecision,
    Interval,
    ModelVersion,
    Promotion,
)
from rlhf_pipeline.web.calibration.log import CalibrationOut, describe_entries
from rlhf_pipeline.web.decisions.answers import PromotionOut
from rlhf_pipeline.web.decisions.queries import build_gate, describe_decision, find_changes
from rlhf_pipeline.web.evolution.answers import (
    EvolutionOut,
    PolicyTraining,
    PolicyVersionOut,
    RewardModelVersionOut,
)
from rlhf_pipeline.web.site import Site
from rlhf_pipeline.web.vote_days import (
    NewestVote,
    find_day,
    find_start,
    find_vote_days,
    find_votes_until,
)

ACCURACY, CEILING = "model.accuracy", "model.accuracy_ceiling"
MAX_CALIBRATIONS = 1000  # of which the newest of each reward model is shown
RUN = "run "  # how a promotion names the run that made it


def read_evolution(site: Site) -> EvolutionOut:
    started = _read_started(site)
    return EvolutionOut(
        policies=tuple(_read_policies(site, started)),
        reward_models=tuple(_read_reward_models(site, started)),
    )


def _read_policies(site: Site, started: Mapping[str, DecisionOut]) -> list[PolicyVersionOut]:
    """The newest first."""
    history, gates = _read_history(site)
    promoted = {promotion.version: promotion for promotion in history}  # the last one of each
    days = find_vote_days(
        site.store,
        site.settings.project,
        [
            *(each.promoted_at for each in promoted.values()),
            *(decisions[-1].decided_at for decisions in gates.values()),
        ],
    )
    files = site.files.evaluation_files()
    versions = sorted({*promoted, *gates}, reverse=True)
    start = find_start(site.store, site.settings.project)
    return [
        _describe_policy(
            site, version, gates.get(version, []), history, started, days, start
        ).model_copy(update=_find_files(site, version, versions, files))
        for version in versions
    ]


def read_evaluations(site: Site) -> tuple[dict[int, Evaluation], int | None]:
    """The last evaluation of each version that the gate decided on, and the champion's version."""
    history, gates = _read_history(site)
    return (
        {
            version: decisions[-1].evaluation
            for version, decisions in gates.items()
            if decisions[-1].evaluation is not None
        },
        history[-1].version if history else None,
    )


def list_versions(site: Site) -> list[int]:
    """The versions of policies, the newest first."""
    history, gates = _read_history(site)
    return sorted({*gates, *(promotion.version for promotion in history)}, reverse=True)


def _read_history(site: Site) -> tuple[list[Promotion], dict[int, list[GateDecision]]]:
    """Promotions of policies, and the gate's decisions by version of the candidate; oldest
    first.
    """
    gates: dict[int, list[GateDecision]] = {}
    for decision in site.store.gates.all():
        gates.setdefault(version_of(decision.candidate), []).append(decision)
    return site.store.promotions.history(name_of(site, "policy")), gates


def name_of(site: Site, kind: str) -> str:
    """The name of the project's models of a kind, as the registry has it."""
    return f"{site.settings.project}.{kind}"


def version_of(label: str) -> int:
    """
    >>> version_of("demo.policy@3")
    3
    """
    return int(label.rpartition("@")[2])


def _describe_policy(
    site: Site,
    version: int,
    gates: Sequence[GateDecision],
    history: Sequence[Promotion],
    started: Mapping[str, DecisionOut],
    days: Mapping[datetime, NewestVote],
    start: date | None,
) -> PolicyVersionOut:
    last = gates[-1] if gates else None
    promotion = next((each for each in reversed(history) if each.version == version), None)
    is_champion = bool(history) and history[-1].version == version
    moment = last.decided_at if last else promotion.promoted_at if promotion else None
    assert moment is not None  # versions are known by a gate decision or a promotion
    if gates or moment in days:  # only the first policy is there before the first reward model
        start = None
    return PolicyVersionOut(
        version=version,
        label=f"{name_of(site, 'policy')}@{version}",
        day=start or find_day(moment, days.get(moment)),
        state="champion"
        if is_champion
        else "earlier champion"
        if promotion
        else "promoted"
        if last is not None and last.promoted
        else "refused",
        gate=None
        if last is None
        else build_gate(last, find_votes_until(days, last.decided_at), len(gates)),
        promotion=_describe_promotion(promotion, days),
        decision=_find_decision(promotion, last.run_id if last else None, started),
        training=None
        if last is None or last.registered is None
        else _describe_training(site, last.registered),
        has_report=False,
        compared_with=(),
    )


def _find_files(
    site: Site, version: int, versions: Sequence[int], files: frozenset[str]
) -> dict[str, object]:
    name = name_of(site, "policy")
    label = f"{name}@{version}"
    return {
        "has_report": site.files.evaluation_path(label).name in files,
        "compared_with": tuple(
            other
            for other in versions
            if other != version and site.files.samples_path(label, f"{name}@{other}").name in files
        ),
    }


def _describe_promotion(
    promotion: Promotion | None, days: Mapping[datetime, NewestVote]
) -> PromotionOut | None:
    if promotion is None:
        return None
    votes_until = find_votes_until(days, promotion.promoted_at)
    return PromotionOut.model_validate(promotion.model_dump() | {"votes_until": votes_until})


def _find_decision(
    promotion: Promotion | None, run_id: str | None, started: Mapping[str, DecisionOut]
) -> DecisionOut | None:
    """The decision whose run decided on the version, or promoted it."""
    if run_id is None and promotion is not None and promotion.actor.startswith(RUN):
        run_id = promotion.actor.removeprefix(RUN)
    return started.get(run_id or "")


def _read_started(site: Site) -> dict[str, DecisionOut]:
    """The decisions that started a run, by its id."""
    answers = site.store.decisions.find_answers()
    fires = site.store.decisions.fires()
    times = find_changes(site.store, fires)
    return {each.run_id: describe_decision(each, answers, times) for each in fires if each.run_id}


def _describe_training(site: Site, version: ModelVersion) -> PolicyTraining:
    by_origin = {} if version.data_hash is None else _count_origins(site, version.data_hash)
    return PolicyTraining(
        parent=version.parent,
        strategy=version.params.get("strategy"),
        data_hash=version.data_hash,
        n_pairs=sum(by_origin.values()) or None,
        by_origin=by_origin,
    )


def _count_origins(site: Site, data_hash: str) -> dict[str, int]:
    """Pairs of a retraining set by origin; empty if its file was deleted."""
    try:
        found = site.files.count_values("retraining_set", data_hash, "origin")
    except MissingPartition:  # retention deletes old sets
        return {}
    return {str(origin): n for origin, n in found.items()}


def _read_reward_models(
    site: Site, started: Mapping[str, DecisionOut]
) -> list[RewardModelVersionOut]:
    name = name_of(site, "reward_model")
    history = site.store.promotions.history(name)
    promoted = {promotion.version: promotion for promotion in history}
    champion = history[-1] if history else None
    calibrated = _read_calibrations(site, name, champion.label if champion else None)
    days = find_vote_days(
        site.store,
        site.settings.project,
        [
            *(each.promoted_at for each in promoted.values()),
            *(each.fitted_at for each in calibrated.values()),
        ],
    )
    served = _read_accuracy(site)
    return [
        _describe_reward_model(
            f"{name}@{version}",
            promoted.get(version),
            champion,
            calibrated.get(version),
            started,
            days,
        ).model_copy(update=served.get(f"{name}@{version}", {}))
        for version in sorted({*promoted, *calibrated}, reverse=True)
    ]


def _describe_reward_model(
    label: str,
    promotion: Promotion | None,
    champion: Promotion | None,
    calibration: CalibrationOut | None,
    started: Mapping[str, DecisionOut],
    days: Mapping[datetime, NewestVote],
) -> RewardModelVersionOut:
    is_refused = calibration is not None and calibration.refusal is not None
    fitted_at = calibration.fitted_at if calibration else None
    moment = promotion.promoted_at if promotion else fitted_at
    assert moment is not None  # versions are known by a promotion or a calibrator
    return RewardModelVersionOut(
        version=version_of(label),
        label=label,
        day=find_day(moment, days.get(moment)),
        state="champion"
        if champion is not None and champion.label == label
        else "earlier champion"
        if promotion
        else "refused"
        if is_refused
        else "not promoted",
        calibration=calibration,
        promotion=_describe_promotion(promotion, days),
        decision=_find_decision(promotion, None, started),
        data_seq=promotion.data_seq if promotion else calibration.data_seq if calibration else None,
    )


def _read_accuracy(site: Site) -> dict[str, dict[str, object]]:
    """By label, the accuracy of the last window of days in which a reward model predicted, with the
    noise ceiling of that window.
    """
    found = {
        (point.name, point.labels["reward_model"], point.day): Interval(
            value=point.value, low=point.low, high=point.high, n=point.n
        )
        for point in site.store.metric_points.latest([ACCURACY, CEILING])
        if point.value is not None and point.low is not None and point.high is not None
    }
    return {
        label: {
            "served": interval,
            "served_ceiling": found.get((CEILING, label, day)),
            "served_until": day,
        }
        for (name, label, day), interval in found.items()
        if name == ACCURACY
    }


def _read_calibrations(site: Site, name: str, champion: str | None) -> dict[int, CalibrationOut]:
    """The newest calibrator of each reward model of the project; imported reports are left out."""
    keys = [
        (label, version)
        for _, label, version in site.store.calibrations.entry_keys(limit=MAX_CALIBRATIONS)
        if label.rpartition("@")[0] == name and label.rpartition("@")[2].isdecimal()
    ]
    newest: dict[int, CalibrationOut] = {}
    for one in describe_entries(site.store, list(dict(reversed(keys)).items()), champion):
        if one.state != "imported":
            newest[version_of(one.reward_model)] = one
    return newest
