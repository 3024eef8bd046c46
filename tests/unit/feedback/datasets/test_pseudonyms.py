"""Pseudonyms depend on one salt for the life of a home."""

from pathlib import Path

import pytest

from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.feedback.datasets.pseudonyms import SALT_FILE, Pseudonyms


def test_salt_other_than_the_recorded_one_is_refused(tmp_path: Path) -> None:
    """Else the same people would be imported again as others."""
    recorded = Pseudonyms.load(tmp_path).salt_hash
    assert Pseudonyms.load(tmp_path, recorded).salt_hash == recorded
    (tmp_path / SALT_FILE).write_bytes(bytes(32))
    with pytest.raises(DatasetError, match="is not the one of the first import"):
        Pseudonyms.load(tmp_path, recorded)
    (tmp_path / SALT_FILE).unlink()
    with pytest.raises(DatasetError, match="is missing: the same people"):
        Pseudonyms.load(tmp_path, recorded)
    assert not (tmp_path / SALT_FILE).exists()
