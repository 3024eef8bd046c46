"""What only a simulation can know: the true utility of the champion's completions, day by day.
Printed, never decided on.
"""

from datetime import date

import pandas as pd

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.config import Settings
from rlhf_pipeline.intervals import interval_of_mean
from rlhf_pipeline.records import Interval
from rlhf_pipeline.simulation import SCENARIOS, utility


def measure_true_utility(files: Artefacts, settings: Settings, day: str) -> Interval:
    """Mean utility of the day's completions under the taste of that day, with a bootstrap interval
    over prompts.
    """
    prompts = files.read_frame("prompts", day).set_index("prompt_id")
    made = files.read_frame("completions", day)
    made = made[made["error"].isna()]
    asked = prompts.loc[made["prompt_id"]]
    references = [None if pd.isna(r) else r for r in asked["reference"]]
    taste = SCENARIOS[settings.scenario].taste_on(
        (date.fromisoformat(day) - settings.start_day).days
    )
    return interval_of_mean(
        utility(asked["text"].tolist(), references, made["text"].tolist(), taste),
        groups=made["prompt_id"].tolist(),
    )


def policy_version(files: Artefacts, day: str) -> str:
    return str(files.read_frame("completions", day)["model_version"].iloc[0])
