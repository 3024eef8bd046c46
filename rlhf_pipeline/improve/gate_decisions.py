"""Carries out what the gate decides: the one place where it releases a candidate."""

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ServerUnreachable
from rlhf_pipeline.core.records import GateDecision
from rlhf_pipeline.improve.gate_sessions import decide, load_progress, withdraw
from rlhf_pipeline.improve.releases import Releases
from rlhf_pipeline.learn.champions import Champions


def conclude(champions: Champions, settings: Settings) -> GateDecision | None:
    """Carry out the verdict of the running session's votes; None without a session or verdict, or
    where another champion serves than the one compared with.
    """
    sessions = champions.store.gate_sessions
    session, serving = sessions.running(), champions.champion("policy")
    if session is None or serving is None:
        return None
    progress = load_progress(champions.store, session)
    is_done = serving.label == session.candidate  # a kill came before the session was closed
    if progress.verdict == "open" or not (is_done or serving.label == session.champion):
        return None
    decision = carry_out(decide(session, progress), champions, settings)
    withdraw(champions.store, session)
    sessions.close(session, "decided")
    return decision


def carry_out(decision: GateDecision, champions: Champions, settings: Settings) -> GateDecision:
    """Let a promoted candidate serve, or request its release where a second person has to approve
    it, and keep the decision with its reasons. Returns it with the reason why completions do not
    come from the candidate, if they do not.

    `decision.registered` and `decision.run_id` have to be set. Repeating it for one session, as
    after a kill, records nothing twice, and does not deploy again what a person rolled back or
    rejected meanwhile. Raises as `Champions.promote`.
    """
    candidate, releases = decision.registered, Releases(champions, settings)
    assert candidate is not None
    if decision.promoted and releases.params.approval == "none":
        try:
            fault = champions.serve(settings, candidate)
        except ServerUnreachable as cause:
            fault = str(cause)
        decision = decision.model_copy(update={"not_served": fault})
    latest = champions.store.gates.latest()
    if decision.session_id is None or latest is None or latest.session_id != decision.session_id:
        champions.store.gates.record(decision)
    reasons, measured = describe_reasons(decision), decision.evaluation
    champions.registry.set_version_tags(
        "policy",
        candidate.version,
        {
            "gate": decision.verdict if decision.promoted else "refused",
            "gate_reasons": reasons,
            "win_rate": f"{measured.win_rate}" if measured else "unknown",
            "evaluation_set": measured.evaluation_set if measured else None,
        },
    )
    if decision.promoted and not _was_released(decision, reasons, champions):
        releases.promote("policy", candidate, reason=reasons, actor=f"run {decision.run_id}")
    return decision


def _was_released(decision: GateDecision, reasons: str, champions: Champions) -> bool:
    """Whether the verdict of a session was carried out before: a release has its reasons."""
    candidate, store = decision.registered, champions.store
    assert candidate is not None
    released = {
        *((move.version, move.reason) for move in store.promotions.history(candidate.name)),
        *((act.version, act.reason) for act in store.release_acts.all(candidate.name)),
    }
    return decision.session_id is not None and (candidate.version, reasons) in released


def describe_reasons(decision: GateDecision) -> str:
    """Why the candidate is promoted, or what it is refused for."""
    passed = tuple(check for check in decision.checks if check.passed)
    return " ".join(check.reason for check in (passed if decision.promoted else decision.blocking))
