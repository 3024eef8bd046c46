"""Recognises rows that this pipeline exported, by their column `schema`."""

from collections.abc import Mapping
from typing import Any

from rlhf_pipeline.datasets.cells import RowRejected
from rlhf_pipeline.datasets.formats.csv import unprotect_cell
from rlhf_pipeline.datasets.mapping import SCHEMA
from rlhf_pipeline.datasets.preference import is_exported
from rlhf_pipeline.errors import FrameError
from rlhf_pipeline.row_files import RowFile


class ExportedRows:
    """True if a file may hold exported rows; `unprotect_cells` removes the export's protection
    against spreadsheet formulas.
    """

    def __init__(self, kind: str, rows: RowFile):
        self._kind = kind
        self._may_be = SCHEMA in rows.columns
        self._is_csv = rows.is_csv

    def __bool__(self) -> bool:
        return self._may_be

    def unprotect_cells(self, cells: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
        """The cells, and whether the row was exported. Raises RowRejected for another kind or
        version.
        """
        said = cells.get(SCHEMA)
        try:
            if not is_exported(said):
                return cells, False
        except FrameError as cause:
            raise RowRejected(str(cause)) from cause
        kind = str(said).rpartition("/")[2]
        if kind not in (self._kind, "tuple"):  # a tuple row holds a vote and its comparison
            raise RowRejected(
                f"the row is an exported {kind}, not a {self._kind}. Use the matching `rlhf "
                "import` command"
            )
        return {
            name: unprotect_cell(value) for name, value in cells.items()
        } if self._is_csv else cells, True
