"""Groups comparisons by the completions they share, so that each is encoded once a group."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.core.errors import NotEnoughData

Ints = npt.NDArray[np.int64]
Neighbours = dict[int, dict[int, list[int]]]  # text -> text it was compared with -> rows of pairs


@dataclass(frozen=True)
class ComparisonGroup:
    """`texts` (k,) to encode, and every labelled pair among them: its row in the data and the
    positions of its two sides in `texts`.
    """

    texts: Ints
    pairs: Ints
    first: Ints
    second: Ints


def group_comparisons(
    first: Ints, second: Ints, *, texts_per_batch: int, texts_per_prompt: int, seed: int
) -> list[ComparisonGroup]:
    """Put every pair of texts, `first` and `second` (n,), into at least one group.

    A cluster starts with a random pair that is in none yet, and grows by the completion of the same
    prompt that adds most such pairs, until it has `texts_per_prompt` texts or no completion adds a
    pair. A group holds as many clusters, of random prompts, as `texts_per_batch` allows: one of a
    single prompt would have most comparisons, but moves the weights toward that prompt. Raises
    NotEnoughData if no pair has two different completions.
    """
    neighbours: Neighbours = defaultdict(dict)
    for row, (a, b) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
        if a != b:  # a completion paired with itself teaches nothing
            neighbours[a].setdefault(b, []).append(row)
            neighbours[b].setdefault(a, []).append(row)
    if not neighbours:
        raise NotEnoughData(
            f"Each of {len(first)} pairs to train on sets a completion beside itself, of which "
            "nothing is learnt. Collect votes on completions that differ within max_tokens."
        )
    rng = np.random.default_rng(seed)
    # the texts that each text has not shared a cluster with yet
    fresh = {text: set(others) for text, others in neighbours.items()}
    packed: list[list[int]] = []
    for row in rng.permutation(len(first)).tolist():
        a, b = int(first[row]), int(second[row])
        if a != b and b in fresh[a]:
            cluster = _grow_cluster(a, b, min(texts_per_prompt, texts_per_batch), fresh, rng)
            if packed and len(packed[-1]) + len(cluster) <= texts_per_batch:
                packed[-1] += cluster
            else:
                packed.append(cluster)
    return [_build_group(texts, neighbours, first, second) for texts in packed]


def _grow_cluster(
    a: int, b: int, n_texts: int, fresh: dict[int, set[int]], rng: np.random.Generator
) -> list[int]:
    cluster, inside = [a, b], {a, b}
    gain: dict[int, int] = defaultdict(int)

    def add_gains(new: int) -> None:
        for other in fresh[new]:
            if other not in inside:
                gain[other] += 1

    add_gains(a)
    add_gains(b)
    while len(cluster) < n_texts and gain:
        most = max(gain.values())
        best = sorted(text for text, n in gain.items() if n == most)
        new = best[int(rng.integers(len(best)))]
        del gain[new]
        cluster.append(new)
        inside.add(new)
        add_gains(new)
    for text in cluster:
        fresh[text] -= inside
    return cluster


def _build_group(
    texts: list[int], neighbours: Neighbours, first: Ints, second: Ints
) -> ComparisonGroup:
    place = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    rows = sorted(
        row
        for text in place
        for other, shared_rows in neighbours[text].items()
        if text < other and other in place
        for row in shared_rows
    )
    return ComparisonGroup(
        np.array(list(place), dtype=np.int64),
        np.array(rows, dtype=np.int64),
        np.array([place[int(first[row])] for row in rows], dtype=np.int64),
        np.array([place[int(second[row])] for row in rows], dtype=np.int64),
    )


def group_by_length(lengths: Ints, overhead: int) -> list[Ints]:
    """Group positions of `lengths` that are padded together, minimising the total cost of padding
    and passes, of which each costs as much as `overhead` padding tokens.

    Texts of similar length go together: dynamic programming finds the best cuts of the sorted
    lengths.
    """
    order = np.argsort(lengths, kind="stable")
    n = len(order)
    best = np.full(n + 1, np.inf)
    best[0], cut = 0.0, np.zeros(n + 1, dtype=np.int64)
    for end in range(1, n + 1):
        cost = best[:end] + (end - np.arange(end)) * lengths[order[end - 1]] + overhead
        cut[end] = int(cost.argmin())
        best[end] = cost[cut[end]]
    groups, end = [], n
    while end:
        groups.append(order[cut[end] : end])
        end = int(cut[end])
    return groups[::-1]
