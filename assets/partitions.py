"""The daily partitions (UTC) of the loop; their start is read when the definitions load."""

from pathlib import Path

import dagster as dg

from rlhf_pipeline.config import Settings

# end_offset=1 adds today, because today's prompts and votes are needed today.
DAYS = dg.DailyPartitionsDefinition(
    start_date=Settings.read(folder=Path(__file__).parent.parent).start_day.isoformat(),
    end_offset=1,
)
