"""Plans which completions are encoded together, from the graph of labelled comparisons."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.reward_model.trainers.base import TrainingData

Ints = npt.NDArray[np.int64]

# One more forward and backward pass costs about as much as this many padding tokens: few on a core;
# many on a GPU, which needs work for thousands of threads.
TOKENS_PER_PASS = {"cpu": 64, "cuda": 8192}


@dataclass(frozen=True)
class TextBatch:
    """`texts` (k,) to encode, and every labelled pair among them: its row in the data and the
    positions of its two sides in `texts`.
    """

    texts: Ints
    pairs: Ints
    first: Ints
    second: Ints


class BatchPlan:
    """Plans the batches of every step from the seed alone.

    In each epoch every pair is in at least one batch. A cluster starts with a random pair that was
    not in a batch yet, and grows by the completion of the same prompt that adds most such pairs,
    until it has `texts_per_prompt` texts or no completion adds a pair. A batch holds as many
    clusters, of random prompts, as `texts_per_batch` allows. Raises NotEnoughData if no pair has
    two different completions.
    """

    def __init__(
        self,
        data: TrainingData,
        *,
        texts_per_batch: int,
        texts_per_prompt: int,
        batches_per_step: int,
        epochs: int,
        steps: int | None,
        seed: int,
    ) -> None:
        self._data = data
        self._texts_per_batch = texts_per_batch
        self._texts_per_cluster = min(texts_per_prompt, texts_per_batch)
        self._per_step = batches_per_step
        self._seed = seed
        self._neighbours: dict[int, dict[int, list[int]]] = defaultdict(dict)
        for row, (a, b) in enumerate(zip(data.first.tolist(), data.second.tolist(), strict=True)):
            if a != b:  # a completion paired with itself teaches nothing
                self._neighbours[a].setdefault(b, []).append(row)
                self._neighbours[b].setdefault(a, []).append(row)
        if not self._neighbours:
            raise NotEnoughData(
                f"Each of {len(data.first)} pairs to train on sets a completion beside itself, of "
                "which nothing is learnt. Collect votes on completions that differ within "
                "max_tokens."
            )
        self._epochs: list[list[TextBatch]] = []
        self._starts = [0]
        while (len(self._epochs) < epochs) if steps is None else (self._starts[-1] < steps):
            self._append_epoch()
        self.n_steps = self._starts[-1] if steps is None else steps

    def batches_of_step(self, number: int) -> Sequence[TextBatch]:
        """The batches of step `number`, counted from 0."""
        epoch = int(np.searchsorted(self._starts, number, side="right")) - 1
        begin = (number - self._starts[epoch]) * self._per_step
        return self._epochs[epoch][begin : begin + self._per_step]

    def _append_epoch(self) -> None:
        rng = np.random.default_rng([self._seed, len(self._epochs)])
        clusters = self._build_clusters(rng)
        packed: list[list[list[int]]] = []
        for cluster in clusters:
            if packed and sum(map(len, packed[-1])) + len(cluster) <= self._texts_per_batch:
                packed[-1].append(cluster)
            else:
                packed.append([cluster])
        batches = [self._build_batch(parts) for parts in packed]
        batches = [batches[i] for i in rng.permutation(len(batches))]
        self._epochs.append(batches)
        self._starts.append(self._starts[-1] + -(-len(batches) // self._per_step))

    def _build_clusters(self, rng: np.random.Generator) -> list[list[int]]:
        """Sets of texts, each from one prompt, that together hold every pair at least once."""
        # the texts that each text has not shared a cluster with yet
        fresh = {a: set(others) for a, others in self._neighbours.items()}
        made = []
        for row in rng.permutation(len(self._data.first)).tolist():
            a, b = int(self._data.first[row]), int(self._data.second[row])
            if a != b and b in fresh[a]:
                made.append(self._grow_cluster(a, b, fresh, rng))
        return made

    def _grow_cluster(
        self, a: int, b: int, fresh: dict[int, set[int]], rng: np.random.Generator
    ) -> list[int]:
        cluster, inside = [a, b], {a, b}
        gain: dict[int, int] = defaultdict(int)

        def add_gains(new: int) -> None:
            for other in fresh[new]:
                if other not in inside:
                    gain[other] += 1

        add_gains(a)
        add_gains(b)
        while len(cluster) < self._texts_per_cluster and gain:
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

    def _build_batch(self, clusters: list[list[int]]) -> TextBatch:
        texts = [text for cluster in clusters for text in cluster]
        place = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        rows = sorted(
            {
                row
                for text in place
                for other, found in self._neighbours[text].items()
                if text < other and other in place
                for row in found
            }
        )
        pairs = np.array(rows, dtype=np.int64)
        return TextBatch(
            np.array(list(place), dtype=np.int64),
            pairs,
            np.array([place[int(self._data.first[row])] for row in rows], dtype=np.int64),
            np.array([place[int(self._data.second[row])] for row in rows], dtype=np.int64),
        )


def group_by_length(lengths: Ints, overhead: int) -> list[Ints]:
    """Group positions of `lengths` that are padded together, minimising the total cost of padding
    and passes.

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
