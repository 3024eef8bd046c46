"""Caches embeddings by content hash in append-only files.

Each batch is one file, written completely or not at all: a process killed midway leaves a temporary
file that is never read. A file with a wrong length or checksum is ignored, and its embeddings are
computed again.
"""

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.core.errors import InvalidScores
from rlhf_pipeline.core.files import write_atomically
from rlhf_pipeline.core.records import content_hash

MAGIC = b"RLHFEMB1"
HEADER = struct.Struct("<8sQQI")  # magic, number of vectors, dimension, CRC-32 of the rest
KEY_BYTES = 32

Vectors = npt.NDArray[np.float32]


class EmbeddingCache:
    """Vectors by 64-character key in one folder; several processes may read and add
    concurrently.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.n_ignored = 0
        self._index: dict[str, tuple[Path, int]] = {}
        self._shards: dict[Path, Vectors] = {}
        self._seen: set[Path] = set()

    def get_many(self, keys: Sequence[str]) -> dict[str, Vectors]:
        """Return the cached vectors among `keys`."""
        if any(key not in self._index for key in keys):
            self._read_new_shards()
        found = {key: self._index[key] for key in keys if key in self._index}
        return {key: self._shards[path][row] for key, (path, row) in found.items()}

    def put_many(self, keys: Sequence[str], vectors: Vectors) -> None:
        """Write one file with `vectors` (n, d) under `keys`. Raises ArtefactError if the disk
        refuses.
        """
        if not len(keys):
            return
        if not np.isfinite(vectors).all():
            raise InvalidScores(
                "An embedding is NaN or infinite and is not cached. Check the encoder's weights."
            )
        body = (
            b"".join(bytes.fromhex(key) for key in keys)
            + np.ascontiguousarray(vectors, dtype="<f4").tobytes()
        )
        content = HEADER.pack(MAGIC, len(keys), vectors.shape[1], zlib.crc32(body)) + body
        path = self.folder / f"{content_hash(list(keys))[:32]}.emb"
        write_atomically(path, content)
        self._seen.discard(path)  # an existing file may have been damaged

    def _read_new_shards(self) -> None:
        for path in sorted(set(self.folder.glob("*.emb")) - self._seen):
            self._seen.add(path)
            shard = _read_shard(path)
            if shard is None:
                self.n_ignored += 1
                continue
            keys, self._shards[path] = shard
            self._index.update({key: (path, row) for row, key in enumerate(keys)})


def _read_shard(path: Path) -> tuple[list[str], Vectors] | None:
    """Keys and vectors of a complete file, with the vectors left on disk; None if the file is
    damaged.
    """
    if path.stat().st_size < HEADER.size:
        return None
    content = np.memmap(path, dtype=np.uint8, mode="r")
    magic, n, dimension, checksum = HEADER.unpack(content[: HEADER.size].tobytes())
    body = content[HEADER.size :]
    if (
        magic != MAGIC
        or len(body) != n * (KEY_BYTES + 4 * dimension)
        or zlib.crc32(body.data) != checksum
    ):
        return None
    raw = body[: n * KEY_BYTES].tobytes()
    keys = [raw[i * KEY_BYTES : (i + 1) * KEY_BYTES].hex() for i in range(n)]
    return keys, body[n * KEY_BYTES :].view("<f4").reshape(n, dimension)
