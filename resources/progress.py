"""Writes the progress of long work into a run's log."""

from collections.abc import Callable
from time import monotonic

import dagster as dg

from rlhf_pipeline.core.protocols import Progress

SECONDS_BETWEEN_LINES = 10.0


def progress_resource() -> dg.ResourceDefinition:
    """`progress("completions")` returns a Progress that logs a line at most every ten seconds."""

    @dg.resource(description="Writes the progress of long stages into the run's log.")
    def progress(context: dg.InitResourceContext) -> Callable[[str], Progress]:
        def progress_for(stage: str) -> Progress:
            last = monotonic()

            def report(done: int, total: int, note: str = "") -> None:
                nonlocal last
                if context.log is not None and monotonic() - last >= SECONDS_BETWEEN_LINES:
                    last = monotonic()
                    context.log.info(f"{stage}: {done} of {total} {note}".rstrip())

            return report

        return progress_for

    return progress
