"""The daily partitions (UTC) of the loop; their start is read when the definitions load."""

import dagster as dg

from rlhf_pipeline.core.config import Settings, project_folder

# end_offset=1 adds today, because today's prompts and votes are needed today.
DAYS = dg.DailyPartitionsDefinition(
    start_date=Settings.read(folder=project_folder()).start_day.isoformat(),
    end_offset=1,
)
