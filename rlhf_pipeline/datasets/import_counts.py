"""Counts of imported rows by outcome, and import progress."""

from typing import Protocol, Self

from rlhf_pipeline.records import Record


class ImportCounts(Record):
    """Rows of a file by outcome; each row has exactly one."""

    imported: int = 0
    known: int = 0
    merged: int = 0
    rejected: int = 0

    def plus(self, **more: int) -> Self:
        """These counts with `more` added.

        >>> ImportCounts(known=1).plus(known=2, merged=1).total
        4
        """
        return self.model_copy(update={name: getattr(self, name) + n for name, n in more.items()})

    @property
    def total(self) -> int:
        return self.imported + self.known + self.merged + self.rejected

    def __str__(self) -> str:
        """
        >>> print(ImportCounts(imported=63011))
        63,011 imported, 0 already known, 0 merged, 0 rejected
        """
        return (
            f"{self.imported:,} imported, {self.known:,} already known, {self.merged:,} "
            f"merged, {self.rejected:,} rejected"
        )


class ImportProgress(Protocol):
    """Receives the progress of a phase: `done` of `total`, in the phase's unit."""

    def __call__(self, phase: str, done: int, total: int) -> None: ...


def ignore_import_progress(phase: str, done: int, total: int) -> None:
    """The null ImportProgress."""
