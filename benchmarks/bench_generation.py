"""How fast evaluation completes prompts: in batches with a seed per row, beside a loop that calls
`generate` on one prompt at a time.

    python benchmarks/bench_generation.py [--prompts 200] [--rounds 5] [--device auto]

Both ways use one loaded policy, the embedded one, and sample up to 48 tokens at temperature 0.8;
the rounds alternate. The batches go the way of the asset `evaluation`: requests, ledger, backend.
Limit: 4 times the completions a second. Reads the embedded policy from RLHF_HOME (default var/)
where `rlhf init` has left one, else trains it first (a minute).
"""

import argparse
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

import numpy as np  # noqa: E402

from benchmarks.completion_calls import open_fresh_store  # noqa: E402
from benchmarks.measurement import Limits, pin_to_cores, print_table  # noqa: E402
from rlhf_pipeline.completions import CompletionRequest, LocalBackend  # noqa: E402
from rlhf_pipeline.completions.results import complete_requests  # noqa: E402
from rlhf_pipeline.config import Settings, silence_telemetry  # noqa: E402
from rlhf_pipeline.evaluation import EvaluationParams, frozen_prompts  # noqa: E402
from rlhf_pipeline.policy.causal_lm import Policy, load_policy  # noqa: E402
from rlhf_pipeline.policy.pretraining import pretrain  # noqa: E402

LEAST_RATIO = 4.0
PARAMS = EvaluationParams()


def complete_one_by_one(policy: Policy, prompts: list[str]) -> int:
    """Complete each prompt by transformers' own sampling; returns the number of tokens."""
    import torch

    ends, n_tokens = policy.tokenizer.eos_token_id, 0
    with torch.inference_mode():
        for prompt in prompts:
            ids = policy.tokenizer(
                policy.format_prompt(prompt), add_special_tokens=False, return_tensors="pt"
            ).to(policy.model.device)
            made = policy.model.generate(
                input_ids=ids["input_ids"],
                attention_mask=ids["attention_mask"],
                do_sample=True,
                temperature=PARAMS.temperature,
                max_new_tokens=PARAMS.max_new_tokens,
                eos_token_id=ends,
                pad_token_id=ends,
            )
            n_tokens += made.shape[1] - ids["input_ids"].shape[1]
    return n_tokens


def complete_in_batches(policy: Policy, prompts: list[str], seed: int) -> int:
    """Complete all prompts as `evaluation` does; returns the number of tokens."""
    requests = [
        CompletionRequest(
            prompt_id=f"p{number}",
            prompt=prompt,
            temperature=PARAMS.temperature,
            top_p=PARAMS.top_p,
            sample_index=0,
            seed=seed * 100_000 + number,
            max_tokens=PARAMS.max_new_tokens,
        )
        for number, prompt in enumerate(prompts)
    ]
    with open_fresh_store() as store:
        made = complete_requests(
            LocalBackend(policy, f"bench@{seed}"), requests, ledger=store.generation
        )
    return sum(result.n_tokens for _, result in made if result is not None)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=200, help="prompts of a round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each way")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    given = parser.parse_args()
    silence_telemetry()
    limits = Limits()
    with tempfile.TemporaryDirectory() as folder, pin_to_cores(2) as cores:
        trained = Settings.read(folder=ROOT).cache / "embedded_policy"
        if not trained.exists():
            trained = Path(folder) / "policy"
            pretrain(trained)
        policy = load_policy(trained, device=given.device, dtype="float32")
        prompts = frozen_prompts()["text"].tolist()[: given.prompts]
        complete_one_by_one(policy, prompts[:5])
        speeds: dict[str, list[tuple[float, float, float]]] = {"one by one": [], "batches": []}
        for round_no in range(given.rounds):
            for name, rounds in speeds.items():
                wall, cpu = perf_counter(), process_time()
                n_tokens = (
                    complete_one_by_one(policy, prompts)
                    if name == "one by one"
                    else complete_in_batches(policy, prompts, round_no)
                )
                wall, cpu = perf_counter() - wall, process_time() - cpu
                rounds.append((len(prompts) / wall, n_tokens / wall, cpu / len(prompts)))
    medians = {name: np.median(rounds, axis=0) for name, rounds in speeds.items()}
    print_table(
        f"{len(prompts)} prompts, {given.rounds} rounds each, {policy.model.device}, {cores}",
        ("way", "completions a second", "tokens a second", "CPU ms a completion"),
        [
            (name, f"{one[0]:.0f}", f"{one[1]:.0f}", f"{one[2] * 1000:.1f}")
            for name, one in medians.items()
        ],
    )
    ratios = [b[0] / a[0] for a, b in zip(speeds["one by one"], speeds["batches"], strict=True)]
    limits.check(
        float(np.median(ratios)) >= LEAST_RATIO,
        f"evaluation completes {np.median(ratios):.1f} times as fast as a loop "
        f"[{min(ratios):.1f}, {max(ratios):.1f}] (at least {LEAST_RATIO:g})",
    )
    return limits.print_summary()


if __name__ == "__main__":
    sys.exit(main())
