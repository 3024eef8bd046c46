"""Measures how far a candidate policy has moved from the champion."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_pipeline.core.errors import InvalidScores, ModelError
from rlhf_pipeline.core.intervals import Floats
from rlhf_pipeline.generate.policy.batches import MAX_LOGITS, batch_by_logits
from rlhf_pipeline.generate.policy.causal_lm import Policy

POSITIONS = 256  # whose distributions are held in float64 at once


def kl_per_token(
    candidate: Policy,
    champion: Policy,
    prompts: Sequence[str],
    completions: Sequence[str],
    *,
    max_logits: int = MAX_LOGITS,
) -> Floats:
    """KL(candidate || champion) in nats per token along each of the candidate's completions, (n,),
    at least 0.

    At every position the divergence of the next-token distributions is summed over the whole
    vocabulary instead of estimated from the sampled token (Rao-Blackwellised estimator, Amini et
    al. 2025): it has less variance and, unlike the mean log ratio, cannot be negative. The end
    token counts as a position. At most `max_logits` numbers are held per batch and policy.

    Raises ModelError for policies with different vocabularies, InvalidScores for logits that are
    not finite.
    """
    return kl_and_entropy(candidate, champion, prompts, completions, max_logits=max_logits)[0]


def kl_and_entropy(
    candidate: Policy,
    champion: Policy,
    prompts: Sequence[str],
    completions: Sequence[str],
    *,
    max_logits: int = MAX_LOGITS,
) -> tuple[Floats, Floats]:
    """`kl_per_token`, and the entropy of the candidate in nats per token at the same positions,
    (n,) each. Raises as `kl_per_token`.
    """
    if candidate.tokenizer.get_vocab() != champion.tokenizer.get_vocab():
        raise ModelError(
            f"{candidate.name} and {champion.name} have different vocabularies, so KL per token "
            "is undefined. Compare policies of one family."
        )
    rows = [
        _token_ids(candidate, prompt, text)
        for prompt, text in zip(prompts, completions, strict=True)
    ]
    figures = np.zeros((2, len(rows)))
    lengths = [len(p) + len(c) for p, c in rows]
    for batch in batch_by_logits(lengths, candidate.model, max_logits=max_logits):
        figures[:, batch] = _batch_figures(
            candidate.model, champion.model, [rows[i] for i in batch]
        )
    if not np.isfinite(figures).all():
        raise InvalidScores(
            f"KL from {champion.name} to {candidate.name} is not finite. The weights of one of "
            "them are damaged; restore or train them again."
        )
    return figures[0], figures[1]


def _token_ids(policy: Policy, prompt: str, completion: str) -> tuple[list[int], list[int]]:
    """Token ids of prompt and completion, cut to the policy's context length."""
    head, tail = policy.tokenize_exchange(prompt, completion)
    return head, tail[: max(1, policy.context_length - len(head))]


def _batch_figures(
    candidate: Any, champion: Any, rows: Sequence[tuple[list[int], list[int]]]
) -> Floats:
    """KL and entropy of each row, (2, n)."""
    import torch

    width = max(len(p) + len(c) for p, c in rows)
    ids = torch.tensor([[*p, *c] + [0] * (width - len(p) - len(c)) for p, c in rows])
    mask = torch.tensor(
        [[1] * (len(p) + len(c)) + [0] * (width - len(p) - len(c)) for p, c in rows]
    )
    # position t predicts token t + 1: the last prompt token predicts the first of the completion
    targets = torch.tensor(
        [[0] * (len(p) - 1) + [1] * len(c) + [0] * (width - len(p) - len(c)) for p, c in rows]
    ).bool()
    with torch.inference_mode():
        logits = [
            model(input_ids=ids.to(model.device), attention_mask=mask.to(model.device))
            .logits[:, :-1][targets.to(model.device)]  # (completion tokens of all rows, vocabulary)
            .split(POSITIONS)
            for model in (candidate, champion)
        ]
        # reduced where they are: all logits as float64 would be copied to the CPU
        figures = torch.cat([_reduce(*pair).cpu() for pair in zip(*logits, strict=True)], dim=-1)
        lengths = targets.sum(-1).tolist()
        return np.array(
            [[float(row.mean()) for row in figure.split(lengths)] for figure in figures]
        )


def _reduce(candidate: Any, champion: Any) -> Any:
    """KL and entropy at each position, (2, positions), of logits (positions, vocabulary)."""
    import torch

    log_p, log_q = (logits.double().log_softmax(-1) for logits in (candidate, champion))
    p = log_p.exp()
    # negative only by rounding
    return torch.stack([(p * (log_p - log_q)).sum(-1).clamp(min=0.0), -(p * log_p).sum(-1)])
