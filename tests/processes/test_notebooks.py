"""The notebooks of the documents run as they stand, by commands and the public API. The first one
runs outside a checkout: test_dev.
"""

from pathlib import Path

import pytest

from rlhf_pipeline.watch.drift import DETECTORS

nbformat = pytest.importorskip("nbformat", reason="pip install nbclient ipykernel")
nbclient = pytest.importorskip("nbclient", reason="pip install nbclient ipykernel")

pytestmark = pytest.mark.timeout(2400)
DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_at_most_60_lines_of_code(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    lines = [line for c in cells if c.cell_type == "code" for line in c.source.splitlines()]
    assert sum(bool(line.strip()) for line in lines) <= 60


@pytest.mark.parametrize("path", NOTEBOOKS[1:], ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTEBOOK_FOLDER", str(tmp_path))
    notebook = nbformat.read(path, as_version=4)
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
