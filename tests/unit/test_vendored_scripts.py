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
    assert {script["file"] for script in listed} == {path.name for path in vendor.glob("*.js")}
    for script in listed:
        content = (vendor / script["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == script["sha256"], script["name"]
        assert (vendor / script["license"]).stat().st_size > 500
        assert re.fullmatch(r"\d+\.\d+\.\d+", script["version"])
        assert script["build"]


def test_the_chart_library_evaluates_no_text() -> None:
    """The content security policy would refuse it."""
    source = (ROOT / FOLDERS[0] / "echarts.min.js").read_text(encoding="utf-8")
    assert re.search(r"\beval\(|new Function\b|\bFunction\(", source) is None
