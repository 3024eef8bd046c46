"""The drift timeline over all replayed days: every vote by the model that had predicted it."""

import pandas as pd

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.config import Settings
from rlhf_pipeline.drift.stream import stream_warnings
from rlhf_pipeline.files import write_atomically
from rlhf_pipeline.reports.draw import draw_png
from rlhf_pipeline.reports.drift import timeline_chart
from rlhf_pipeline.store import Store
from rlhf_pipeline.votes import noise_ceiling_or_repeats
from rlhf_pipeline.votes.counting import standing

FILE = "replay_timeline.png"


def write_timeline(settings: Settings, store: Store) -> str | None:
    """Where the picture of all replayed days was written; None where no prediction met a vote."""
    days, files = store.replays.finished_days(), Artefacts(settings.frames, store.file_hashes)
    rows = files.read_days("reflection_log", days)
    stands = rows["vote_id"].isin(standing(files.read_days("votes", days))["vote_id"])
    judged = rows[rows["is_error"].notna() & rows["day"].isin(days) & stands].sort_values("seq")
    if judged.empty:
        return None
    errors = pd.DataFrame(
        {
            "seq": judged["seq"].astype("int64"),
            "day": judged["day"],
            "error": judged["is_error"].astype(float),
        }
    )
    models = {int(seq): label for label, seq in judged.groupby("reward_model")["seq"].min().items()}
    chart = timeline_chart(
        errors,
        [event for label in models.values() for event in store.events.for_model(label)],
        [
            warning
            for label in models.values()
            for warning in stream_warnings(store.detectors.states(label))
        ],
        models=models,
        noise_ceiling=noise_ceiling_or_repeats(files.read_days("votes", days)),
        window=300,
        title=f"Errors of {settings.project} over {len(days)} replayed days, in vote order",
    )
    path = settings.exports / FILE
    write_atomically(path, draw_png(chart))
    return str(path)
