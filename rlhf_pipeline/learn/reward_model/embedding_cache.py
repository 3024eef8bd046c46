"""Caches embeddings by content hash in append-only safetensors files.

Each batch is one file, written completely or not at all: a process killed midway leaves a temporary
file that is never read. A file of a wrong length is ignored, and its embeddings are computed again.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.core.errors import InvalidScores
from rlhf_pipeline.core.files import write_atomically
from rlhf_pipeline.core.records import content_hash

Vectors = npt.NDArray[np.float32]


class EmbeddingCache:
    """Vectors by 64-character key in one folder; several processes may read and add
    concurrently.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.n_ignored = 0
        self._index: dict[str, tuple[Path, int]] = {}
        self._seen: set[Path] = set()

    def get_many(self, keys: Sequence[str]) -> dict[str, Vectors]:
        """Return the cached vectors among `keys`."""
        if any(key not in self._index for key in keys):
            self._index_new_files()
        rows_by_file: dict[Path, dict[str, int]] = defaultdict(dict)
        for key in keys:
            if key in self._index:
                path, row = self._index[key]
                rows_by_file[path][key] = row
        vectors_by_key: dict[str, Vectors] = {}
        for path, rows in rows_by_file.items():
            _, vectors = _read(path)
            vectors_by_key |= {key: vectors[row] for key, row in rows.items() if len(vectors)}
        return vectors_by_key

    def put_many(self, keys: Sequence[str], vectors: Vectors) -> None:
        """Write one file with `vectors` (n, d) under `keys`. Raises ArtefactError if the disk
        refuses.
        """
        from safetensors.numpy import save

        if not len(keys):
            return
        if not np.isfinite(vectors).all():
            raise InvalidScores(
                "An embedding is NaN or infinite and is not cached. Check the encoder's weights."
            )
        path = self.folder / f"{content_hash(list(keys))[:32]}.emb"
        stored = {"vectors": np.ascontiguousarray(vectors, dtype=np.float32)}
        write_atomically(path, save(stored, metadata={"keys": " ".join(keys)}))
        self._seen.discard(path)  # an existing file may have been damaged

    def _index_new_files(self) -> None:
        for path in sorted(set(self.folder.glob("*.emb")) - self._seen):
            self._seen.add(path)
            keys, _ = _read(path)
            self.n_ignored += not keys
            self._index.update({key: (path, row) for row, key in enumerate(keys)})


def _read(path: Path) -> tuple[list[str], Vectors]:
    """Keys and vectors of a file; none of one that is damaged, or was deleted meanwhile."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as stored:
            return stored.metadata()["keys"].split(), stored.get_tensor("vectors")
    except (SafetensorError, OSError):
        return [], np.zeros((0, 0), dtype=np.float32)
