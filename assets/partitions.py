"""The daily partitions (UTC) of the loop. Partitions are part of the definitions, so their start is
read when those load.
"""

from pathlib import Path

import dagster as dg

from rlhf_pipeline.config import Settings

# end_offset=1: today exists, because prompts and votes of today are wanted today.
DAYS = dg.DailyPartitionsDefinition(
    start_date=Settings.read(folder=Path(__file__).parent.parent).start_day.isoformat(),
    end_offset=1,
)
