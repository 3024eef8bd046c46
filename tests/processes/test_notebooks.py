"""The notebooks of the documents run as they stand, by commands and the public API."""

from pathlib import Path

import pytest

from rlhf_pipeline.watch.drift import DETECTORS

nbformat = pytest.importorskip("nbformat", reason="pip install nbclient ipykernel")
nbclient = pytest.importorskip("nbclient", reason="pip install nbclient ipykernel")

pytestmark = pytest.mark.timeout(2400)
DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTEBOOK_FOLDER", str(tmp_path))
    if path.stem.startswith("1-"):  # what the policy writes is of no interest here, and slow
        monkeypatch.setenv("RLHF_COMPLETION_BACKEND", "template")
    notebook = nbformat.read(path, as_version=4)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert sum(bool(line.strip()) for source in code for line in source.splitlines()) <= 60
    nbclient.NotebookClient(notebook, kernel_name="python3", timeout=600).execute()
    assert (tmp_path / "report.html").exists() == path.stem.startswith("5-")
    if path.stem.startswith("3-"):
        printed = "".join(output.text for output in notebook.cells[-2].outputs)
        printed_rows = {line.split()[0]: line.split() for line in printed.splitlines()}
        assert {name: printed_rows[name] for name in DETECTORS} == read_measured()


def read_measured() -> dict[str, list[str]]:
    """The cells of each detector in the measurements of one change."""
    text = (DOCS / "measurements.md").read_text().partition("## One change, by every")[2]
    lines = text.partition("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {cells[0]: cells for cells in rows if cells[0] in DETECTORS}
