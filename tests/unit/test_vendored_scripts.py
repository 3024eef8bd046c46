"""Vendored scripts are the bytes that their vendor.json names, with a licence and without eval."""

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
    assert {one["file"] for one in listed} == {path.name for path in vendor.glob("*.js")}
    for one in listed:
        content = (vendor / one["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == one["sha256"], one["name"]
        assert (vendor / one["license"]).stat().st_size > 500
        assert re.fullmatch(r"\d+\.\d+\.\d+", one["version"])
        assert one["build"]


def test_the_chart_library_evaluates_no_text() -> None:
    """The content security policy would refuse it."""
    source = (ROOT / FOLDERS[0] / "echarts.min.js").read_text(encoding="utf-8")
    assert re.search(r"\beval\(|new Function\b|\bFunction\(", source) is None
