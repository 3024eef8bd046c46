"""Vendored files are the bytes that their vendor.json names, with a licence and without eval."""

import hashlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("rlhf_pipeline/web/static/vendor", "tests/browser/vendor")


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_vendored_script_has_its_hash_version_and_licence(folder: str) -> None:
    vendor = ROOT / folder
    listed = json.loads((vendor / "vendor.json").read_text(encoding="utf-8"))
    hashes = {script["file"]: script["sha256"] for script in listed}
    for script in listed:
        hashes |= script.get("others", {})
    paths = [path for path in vendor.rglob("*.*") if path.suffix not in {".json", ".LICENSE"}]
    assert hashes == {
        path.relative_to(vendor).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    }
    for script in listed:
        assert (vendor / script["license"]).stat().st_size > 500
        assert re.fullmatch(r"\d+\.\d+\.\d+", script["version"])
        assert script["build"]


@pytest.mark.parametrize("name", ["echarts", "katex"])
def test_the_library_evaluates_no_text(name: str) -> None:
    """The content security policy would refuse it."""
    source = (ROOT / FOLDERS[0] / f"{name}.min.js").read_text(encoding="utf-8")
    assert re.search(r"\beval\(|new Function\b|\bFunction\(", source) is None
