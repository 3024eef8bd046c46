"""Checks that what serves is the version that was judged, keeps the outcome, and rolls back.

The registered files of a version, whose hash is verified, are what was judged: conversations are
frozen with the tokens and log probabilities that they give.
"""

import logging
from collections.abc import Iterable
from datetime import datetime

from filelock import FileLock

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.config import HomeFacts, ServedCheck, ServedState, Settings
from rlhf_pipeline.core.errors import BackendUnavailable, ReleaseConflict, ServerUnreachable
from rlhf_pipeline.core.records import ModelVersion
from rlhf_pipeline.core.secret_files import provider_key
from rlhf_pipeline.generate.completions import CompletionBackend, LocalBackend
from rlhf_pipeline.generate.completions.adapter_server import unload_adapters
from rlhf_pipeline.generate.completions.served_readings import open_reader
from rlhf_pipeline.generate.policy.causal_lm import load_policy
from rlhf_pipeline.generate.policy.frozen_exchanges import FrozenPolicy, freeze
from rlhf_pipeline.improve.releases import Releases
from rlhf_pipeline.improve.served_differences import (
    EITHER,
    PRECISION,
    WEIGHTS,
    Difference,
    Pair,
    find_difference,
    find_median_difference,
    is_nearer,
    measure_medians,
)
from rlhf_pipeline.learn.champions import Champions

REPORT = "served"
ENOUGH = 8  # conversations: where one of them differs, more would not change what is named
FOR_MEDIAN = 16  # conversations: a vLLM is asked 50 times
ACTOR = "loop"
logger = logging.getLogger(__name__)


def check_served(
    champions: Champions, settings: Settings, backend: CompletionBackend | None = None
) -> ServedCheck | None:
    """Compare what `backend`, or that of the settings, answers with against the deployed version,
    and keep the outcome for the page home. Where the settings say so, a version that differs is
    rolled back, but not for another precision. Adapters of replaced versions, and of treatments
    whose experiment has ended, are unloaded from a server. None while this machine answers with
    another version, such as just after a promotion.

    Raises ModelNotFound without a policy or its files, ModelHashMismatch if these are damaged.
    """
    version, now = champions.policy(), champions.store.database.clock.now()
    try:
        backend = backend or champions.backend(settings)
    except ServerUnreachable as cause:
        return _keep(settings, _refuse(version.label, now, str(cause)))
    if isinstance(backend, LocalBackend) and backend.model_version != version.label:
        return None
    others = Artefacts(settings.frames).read_reports(
        REPORT, _list_replaced(champions, version), FrozenPolicy
    )
    check = compare_served(
        load_frozen(champions, settings, version),
        backend,
        now,
        tolerance=settings.serving.tolerance,
        others=others.values(),
    )
    if check.state == "differs":
        logger.error("What serves is not %s as it was judged: %s", version.label, check.reason)
        is_back = settings.serving.roll_back and _roll_back(champions, settings, version, check)
        check = check.model_copy(update={"rolled_back": is_back})
        return _keep(settings, check)
    if check.state == "other precision":
        logger.warning("%s may serve in another precision: %s", version.label, check.reason)
    if settings.load_adapters:
        _unload_replaced(champions, settings, version)
    return _keep(settings, check)


def _keep(settings: Settings, check: ServedCheck) -> ServedCheck:
    if HomeFacts.load(settings.home) is not None:
        HomeFacts.change(settings.home, served=check)
    return check


def compare_served(
    frozen: FrozenPolicy,
    backend: CompletionBackend,
    now: datetime,
    *,
    tolerance: float | None = None,
    others: Iterable[FrozenPolicy] = (),
) -> ServedCheck:
    """The outcome of reading the frozen conversations from `backend`; `others` are versions that a
    stale server may answer with. Without `tolerance`, of the median, single tokens count; weights
    that differ by rounding alone are then named "other precision".
    """
    of_token = frozen.tolerance if tolerance is None else float("inf")

    is_mute = f"{backend.model_version} gives no log probabilities"
    reader = open_reader(backend, frozen)
    if reader is None:
        return _refuse(frozen.version, now, is_mute)
    pairs: list[Pair] = []
    differences: list[Difference] = []
    try:
        for exchange in frozen.exchanges[: None if tolerance is None else FOR_MEDIAN]:
            pairs.append((exchange, reader.read(exchange)))
            differences.append(find_difference(*pairs[-1], of_token))
            if len(pairs) >= ENOUGH and any(difference.name for difference in differences):
                break
    except BackendUnavailable as cause:
        return _refuse(frozen.version, now, str(cause))
    if all(reading.says_nothing for _, reading in pairs):
        return _refuse(frozen.version, now, is_mute)
    if tolerance is not None:
        differences.append(find_median_difference(pairs, tolerance))
    state: ServedState = "as judged"
    reason = "tokens and log probabilities agree"
    if named := {
        difference.name: difference.detail
        for difference in reversed(differences)
        if difference.name
    }:
        state = "differs"
        reason = "; ".join(f"{name}: {detail}" for name, detail in reversed(named.items()))
        if named.keys() <= {WEIGHTS, EITHER}:
            median = next(size for size in measure_medians(pairs) if size is not None)
            stale = next((other.version for other in others if is_nearer(other, pairs)), None)
            more = f"the median difference of {median:.2g} nats is that of another adapter"
            if stale is not None:
                more = f"it answers as {stale}, a stale version"
            elif median < PRECISION:
                more = more.replace("another adapter", "another precision or quantised weights")
                if tolerance is None:
                    state = "other precision"
                    more += f". If it is meant, set serving: {{tolerance: {2 * median:.1g}}}"
            is_rounded = state == "other precision" and WEIGHTS in named
            reason = more if is_rounded else f"{reason}; {more}"
    return ServedCheck(
        version=frozen.version,
        checked_at=now,
        state=state,
        reason=reason,
        difference=differences[-1].size if tolerance else max(d.size for d in differences),
        tolerance=tolerance or frozen.tolerance,
        n_requests=reader.n_requests,
    )


def _refuse(version: str, now: datetime, reason: str) -> ServedCheck:
    return ServedCheck(version=version, checked_at=now, state="not checkable", reason=reason)


def load_frozen(champions: Champions, settings: Settings, version: ModelVersion) -> FrozenPolicy:
    """The frozen conversations of a version, made from its files where there are none yet."""
    files = Artefacts(settings.frames)

    def read() -> FrozenPolicy | None:
        return files.read_reports(REPORT, [version.label], FrozenPolicy).get(version.label)

    frozen = read()
    if frozen is None:
        with FileLock(settings.home / "served_check.lock"):
            frozen = read()
            if frozen is None:
                folder = champions.policy_folder(version)
                frozen = freeze(
                    version.label,
                    lambda: load_policy(folder, device=settings.device, dtype=settings.dtype),
                )
                content = frozen.model_dump_json().encode()
                files.write({files.report_path(REPORT, version.label): content})
    return frozen


def _list_replaced(champions: Champions, version: ModelVersion) -> list[str]:
    history = champions.store.promotions.history(version.name)
    return [label for label in dict.fromkeys(p.label for p in history) if label != version.label]


def _roll_back(
    champions: Champions, settings: Settings, version: ModelVersion, check: ServedCheck
) -> bool:
    """Once: what a roll back does not cure would else lead back through the whole history."""
    releases = Releases(champions, settings)
    deployed = champions.store.promotions.champion(version.name)
    if deployed is None or deployed.rolls_back or releases.find_target(version.name) is None:
        return False
    reason = f"What serves is not the judged version: {check.reason}"
    try:
        releases.roll_back(version.name, reason=reason, actor=ACTOR, expected=version.version)
    except ReleaseConflict:  # a person was faster
        return False
    return True


def _unload_replaced(champions: Champions, settings: Settings, version: ModelVersion) -> None:
    experiments = champions.store.experiments.all()
    in_use = {version.label, *(e.treatment_model_id for e in experiments if e.is_live)}
    names = {*_list_replaced(champions, version), *(e.treatment_model_id for e in experiments)}
    try:
        unloaded = unload_adapters(settings.base_url, provider_key(settings), names=names - in_use)
    except ServerUnreachable as cause:
        logger.warning("Adapters of replaced versions stay loaded: %s", cause)
        return
    if unloaded:
        logger.info("Unloaded %s", ", ".join(unloaded))
