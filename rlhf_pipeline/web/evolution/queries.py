"""Composes the versions of policies and reward models from promotions, gate decisions and files."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime

from rlhf_pipeline.core.api_types.project import DecisionOut
from rlhf_pipeline.core.errors import MissingPartition, NotFound
from rlhf_pipeline.core.records import (
    Evaluation,
    GateDecision,
    Interval,
    ModelVersion,
    Promotion,
)
from rlhf_pipeline.improve.gate_sessions import find_running
from rlhf_pipeline.store.gate_sessions import GateSession
from rlhf_pipeline.web.calibration.answers import CalibrationOut
from rlhf_pipeline.web.calibration.queries import describe_entries
from rlhf_pipeline.web.decisions.answers import PromotionOut
from rlhf_pipeline.web.decisions.queries import build_gate, describe_decision, find_changes
from rlhf_pipeline.web.evolution.answers import (
    EvolutionOut,
    GateSessionOut,
    PolicyTraining,
    PolicyVersionOut,
    RewardModelVersionOut,
    VersionFilter,
)
from rlhf_pipeline.web.site import Site
from rlhf_pipeline.web.vote_days import (
    NewestVote,
    find_day,
    find_promotion_day,
    find_start,
    find_vote_days,
    find_votes_until,
)

ACCURACY, CEILING = "model.accuracy", "model.accuracy_ceiling"
Version = PolicyVersionOut | RewardModelVersionOut
RUN = "run "  # how a promotion names the run that made it


def read_evolution(site: Site) -> EvolutionOut:
    started, asking = _read_started(site), find_running(site.store)
    return EvolutionOut(
        asking=GateSessionOut(**asking.model_dump()) if asking else None,
        policies=tuple(_read_policies(site, started)),
        reward_models=tuple(_read_reward_models(site, started)),
    )


def write_headline(evolution: EvolutionOut) -> str:
    """What serves, and whether the newest candidate was refused."""
    if not evolution.policies and not evolution.reward_models:
        return "Versions"
    serving = [
        next(
            (f"{kind} {version.version}" for version in versions if version.state == "champion"),
            f"no {kind}",
        )
        for kind, versions in (
            ("policy", evolution.policies),
            ("reward model", evolution.reward_models),
        )
    ]
    words = f"{serving[0].capitalize()} and {serving[1]} serve"
    newest = next(iter(evolution.policies), None)
    if evolution.asking is not None:
        number = version_of(evolution.asking.candidate)
        return f"{words}; people are asked about policy {number}"
    if newest is None or newest.gate is None or newest.state != "refused":
        return words
    reason = " and ".join(newest.gate.refused_for) or "an unknown reason"
    return f"{words}; policy {newest.version} was refused for {reason}"


def filter_versions(evolution: EvolutionOut, filters: VersionFilter) -> tuple[Version, ...]:
    """Policies, then reward models, or only the chosen kind; the newest first."""
    policies = evolution.policies if filters.kind != "reward_model" else ()
    models = evolution.reward_models if filters.kind != "policy" else ()
    return (*policies, *models)


def _read_policies(site: Site, started: Mapping[str, DecisionOut]) -> list[PolicyVersionOut]:
    """The newest first."""
    history, gates = _read_history(site)
    undecided = _find_undecided(site)
    promoted = {promotion.version: promotion for promotion in history}  # the last one of each
    decided = {version: decisions[-1] for version, decisions in gates.items()}
    moments = {version: promotion.promoted_at for version, promotion in promoted.items()}
    made_at = moments | {version: gate.decided_at for version, gate in decided.items()}
    days = find_vote_days(site.store, site.settings.project, {*moments.values(), *made_at.values()})
    start = find_start(site.store, site.settings.project)
    files = site.files.report_files()
    champion = history[-1].version if history else None
    versions = sorted(made_at, reverse=True)

    def describe(version: int) -> PolicyVersionOut:
        gate, promotion = decided.get(version), promoted.get(version)
        label, moment = label_of(site, version), made_at[version]
        # only the first policy is there before the first reward model
        is_first = gate is None and moment not in days
        return PolicyVersionOut(
            version=version,
            label=label,
            day=(start if is_first else None) or find_day(moment, days.get(moment)),
            state="champion"
            if version == champion
            else "earlier champion"
            if promotion
            else "promoted"
            if gate and gate.promoted
            else "refused"
            if version not in undecided
            else "asked about"
            if undecided[version].is_running
            else "void",
            why_void=undecided[version].terms.reason if version in undecided else "",
            gate=gate
            and build_gate(gate, find_votes_until(days, gate.decided_at), len(gates[version])),
            promotion=_describe_promotion(promotion, days),
            decision=_find_decision(promotion, gate.run_id if gate else None, started),
            training=gate and gate.registered and _describe_training(site, gate.registered),
            has_report=site.files.report_path("evaluation", label).name in files,
            compared_with=tuple(
                other
                for other in versions
                if other != version
                and site.files.report_path("samples", f"{label}_{label_of(site, other)}").name
                in files
            ),
        )

    return [describe(version) for version in versions]


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
    first. Of a candidate on which it never decided, the decision that it left to people.
    """
    gates: dict[int, list[GateDecision]] = {}
    for decision in site.store.gates.all():
        gates.setdefault(version_of(decision.candidate), []).append(decision)
    for version, session in _find_undecided(site).items():
        changes = {"asks_people": session.is_running}
        gates[version] = [session.terms.decision.model_copy(update=changes)]
    return site.store.promotions.history(name_of(site, "policy")), gates


def _find_undecided(site: Site) -> dict[int, GateSession]:
    """The newest session on each candidate about which people were asked, and no gate decided."""
    decided = {decision.candidate for decision in site.store.gates.all()}
    return {
        version_of(session.candidate): session
        for session in site.store.gate_sessions.all()
        if session.candidate not in decided
    }


def name_of(site: Site, kind: str) -> str:
    """The name of the project's models of a kind, as the registry has it."""
    return f"{site.settings.project}.{kind}"


def label_of(site: Site, version: int) -> str:
    """Of a policy."""
    return f"{name_of(site, 'policy')}@{version}"


def version_of(label: str) -> int:
    """
    >>> version_of("demo.policy@3")
    3
    """
    return int(label.rpartition("@")[2])


def _describe_promotion(
    promotion: Promotion | None, days: Mapping[datetime, NewestVote]
) -> PromotionOut | None:
    if promotion is None:
        return None
    votes_until = find_promotion_day(days, promotion)
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
    return {fire.run_id: describe_decision(fire, answers, times) for fire in fires if fire.run_id}


def _describe_training(site: Site, version: ModelVersion) -> PolicyTraining:
    by_origin = count_set(site, version.data_hash, "origin")
    dataset = version.params.get("dataset")
    return PolicyTraining(
        parent=version.parent,
        strategy=version.params.get("strategy"),
        dataset=dataset,
        dataset_id=dataset and _find_dataset(site, dataset),
        data_hash=version.data_hash,
        n_pairs=sum(by_origin.values()) or None,
        by_origin=by_origin,
    )


def _find_dataset(site: Site, label: str) -> int | None:
    """None where the store that has the data set is not this one."""
    with suppress(NotFound):
        return site.store.datasets.find(label.rpartition("@")[0]).dataset_id
    return None


def count_set(site: Site, data_hash: str | None, column: str) -> dict[str, int]:
    """Pairs of a retraining set by a column; empty if the set is unknown or its file deleted."""
    try:
        counts = site.files.count_values("retraining_set", data_hash, column) if data_hash else {}
    except MissingPartition:  # retention deletes old sets
        return {}
    return {str(value): n for value, n in counts.items()}


def _read_reward_models(
    site: Site, started: Mapping[str, DecisionOut]
) -> list[RewardModelVersionOut]:
    """The newest first."""
    name = name_of(site, "reward_model")
    history = site.store.promotions.history(name)
    promoted = {promotion.version: promotion for promotion in history}
    calibrated = _read_calibrations(site, name)
    moments = {version: calibration.fitted_at for version, calibration in calibrated.items()}
    made_at = moments | {version: promotion.promoted_at for version, promotion in promoted.items()}
    days = find_vote_days(site.store, site.settings.project, made_at.values())
    served = _read_accuracy(site)

    def describe(version: int) -> RewardModelVersionOut:
        label, moment = f"{name}@{version}", made_at[version]
        promotion, calibration = promoted.get(version), calibrated.get(version)
        is_refused = calibration is not None and calibration.refusal is not None
        return RewardModelVersionOut(
            version=version,
            label=label,
            day=find_day(moment, days.get(moment)),
            state="champion"
            if history and version == history[-1].version
            else "earlier champion"
            if promotion
            else "refused"
            if is_refused
            else "not promoted",
            calibration=calibration,
            promotion=_describe_promotion(promotion, days),
            decision=_find_decision(promotion, None, started),
            data_seq=promotion.data_seq
            if promotion
            else calibration.data_seq
            if calibration
            else None,
        ).model_copy(update=served.get(label, {}))

    return [describe(version) for version in sorted(made_at, reverse=True)]


def _read_accuracy(site: Site) -> dict[str, dict[str, object]]:
    """By label, the accuracy of the last window of days in which a reward model predicted, with the
    noise ceiling of that window.
    """
    intervals = {
        (point.name, point.labels["reward_model"], point.day): Interval(
            value=point.value, low=point.low, high=point.high, n=point.n
        )
        for point in site.store.metric_points.latest([ACCURACY, CEILING])
        if point.value is not None and point.low is not None and point.high is not None
    }
    return {
        label: {
            "served": interval,
            "served_ceiling": intervals.get((CEILING, label, day)),
            "served_until": day,
        }
        for (name, label, day), interval in intervals.items()
        if name == ACCURACY
    }


def _read_calibrations(site: Site, name: str) -> dict[int, CalibrationOut]:
    """The newest calibrator of each reward model of the project; imported reports are left out."""
    calibrations = site.store.calibrations
    newest = [
        (label, versions[0])
        for label in calibrations.models()
        if label.rpartition("@")[0] == name and label.rpartition("@")[2].isdecimal()
        for versions in [calibrations.versions(label)]
        if versions
    ]
    return {
        version_of(calibration.reward_model): calibration
        for calibration in describe_entries(site, newest)
    }
