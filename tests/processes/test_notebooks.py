"""The notebooks of the documents run as they stand, by commands and the public API."""

from pathlib import Path

import pytest

from rlhf_pipeline.simulation.laboratory import LAB_SCENARIOS

nbformat = pytest.importorskip("nbformat", reason="pip install nbclient ipykernel")
nbclient = pytest.importorskip("nbclient", reason="pip install nbclient ipykernel")

pytestmark = pytest.mark.timeout(600)
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
        table = read_table((DOCS / "measurements.md").read_text().partition("## The laboratory")[2])
        result = read_table((tmp_path / "report" / "laboratory.md").read_text())
        assert table
        assert all(set(cells) <= set(result[row]) for row, cells in table.items())


def read_table(text: str) -> dict[str, list[str]]:
    """The cells of each row of the laboratory, up to the next chapter."""
    lines = text.partition("\n## One retraining")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {cells[0]: cells for cells in rows if cells[0] in LAB_SCENARIOS}
