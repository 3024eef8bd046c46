"""Is a served policy recognised as the judged one, and a planted fault found?

    python benchmarks/bench_served.py [--reloads 20] [--checks 50] [--server-checks 5]

The embedded policy is frozen as at its promotion. Each of `--reloads` clean reloads is checked
`--checks` times on this machine, with one and two threads in turn, and `--server-checks` times
through a stub that answers as vLLM documents with the same policy behind it; repeated checks of one
reload are no independent samples. Then each fault is planted in both. Exits with 1 where a limit is
broken.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

from rlhf_pipeline.core.config import silence_telemetry  # noqa: E402

silence_telemetry()

from datetime import UTC, datetime  # noqa: E402

import torch  # noqa: E402
from transformers.utils import logging  # noqa: E402

from benchmarks.measurement import LimitTable  # noqa: E402
from rlhf_pipeline.core.config import ServedCheck  # noqa: E402
from rlhf_pipeline.generate.completions import CompletionBackend, LocalBackend  # noqa: E402
from rlhf_pipeline.generate.completions.openai_compatible import (  # noqa: E402
    OpenAICompatibleBackend,
)
from rlhf_pipeline.generate.policy.causal_lm import Policy  # noqa: E402
from rlhf_pipeline.generate.policy.frozen_exchanges import FrozenPolicy, freeze  # noqa: E402
from rlhf_pipeline.improve.served_check import compare_served  # noqa: E402
from tests.planted_faults import FAULTS, load, plant  # noqa: E402
from tests.vllm_stub import MODEL, VLLMStub  # noqa: E402

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OLDER, JUDGED = "demo.policy@1", "demo.policy@2"
MOST_REQUESTS, MOST_ALARMS = 50, 0.001


def check(frozen: FrozenPolicy, backend: CompletionBackend, *others: FrozenPolicy) -> ServedCheck:
    return compare_served(frozen, backend, NOW, others=others)


def check_server(frozen: FrozenPolicy, stub: VLLMStub, *others: FrozenPolicy) -> ServedCheck:
    return check(frozen, OpenAICompatibleBackend(MODEL, stub.base_url), *others)


def measure_alarms(
    table: LimitTable, frozen: FrozenPolicy, n_reloads: int, n_checks: int, n_server: int
) -> None:
    local, served = list[ServedCheck](), list[ServedCheck]()
    for _ in range(n_reloads):
        backend = LocalBackend(load(), JUDGED)
        for n in range(n_checks):
            torch.set_num_threads(1 + n % 2)
            local.append(check(frozen, backend))
        with VLLMStub(load()) as stub:
            served += [check_server(frozen, stub) for _ in range(n_server)]
    for where, checks in (("this machine", local), ("a vLLM (stub)", served)):
        alarms = sum(outcome.state != "as judged" for outcome in checks)
        largest = max(outcome.difference or 0.0 for outcome in checks)
        table.print_row(
            f"{n_reloads} clean reloads on {where}, {len(checks):,} checks",
            f"false alarms; largest difference (tolerance {frozen.tolerance:.1e} nats)",
            f"{alarms}; {largest:.1e}",
            f"<= {MOST_ALARMS:.1%}",
            passed=alarms <= MOST_ALARMS * len(checks),
        )


def measure_faults(table: LimitTable, frozen: FrozenPolicy) -> None:
    older = plant("other adapter")
    others = freeze(OLDER, lambda: older, n_reloads=1)

    def print_found(fault: str, where: str, outcome: ServedCheck, expected: str) -> None:
        table.print_row(
            f"{fault}, {where}",
            "requests until it is named",
            f"{outcome.n_requests}: {outcome.reason[:90]}",
            f"<= {MOST_REQUESTS}",
            passed=outcome.n_requests <= MOST_REQUESTS and expected in outcome.reason,
        )

    def find_both(fault: str, policy: Policy, expected: str, *known: FrozenPolicy) -> None:
        local = check(frozen, LocalBackend(policy, JUDGED), *known)
        print_found(fault, "this machine", local, expected)
        with VLLMStub(policy) as stub:
            print_found(fault, "vLLM", check_server(frozen, stub, *known), expected)

    for fault, (_, expected) in FAULTS.items():
        find_both(fault, plant(fault), expected)
    find_both("stale version", older, f"answers as {OLDER}", others)
    with VLLMStub(load(), cached=older) as stub:
        print_found("stale prefix cache", "vLLM", check_server(frozen, stub), "stale prefix cache")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reloads", type=int, default=20)
    parser.add_argument("--checks", type=int, default=50, help="of each reload, on this machine")
    parser.add_argument("--server-checks", type=int, default=5, help="of each reload, by the stub")
    options = parser.parse_args()
    logging.disable_progress_bar()
    table, frozen = LimitTable(), freeze(JUDGED, load)
    measure_faults(table, frozen)
    measure_alarms(table, frozen, options.reloads, options.checks, options.server_checks)
    return table.limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
