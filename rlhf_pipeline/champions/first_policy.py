"""Registers the first policy of a project when it is first needed."""

from filelock import FileLock

from rlhf_pipeline.champions.champions import Champions
from rlhf_pipeline.config import HomeFacts, Settings
from rlhf_pipeline.protocols import Progress, ignore_progress
from rlhf_pipeline.records import ModelVersion


def register_first_policy(
    champions: Champions, settings: Settings, progress: Progress = ignore_progress
) -> ModelVersion:
    """The champion policy; without one, that of the settings or the embedded one, which is trained
    here once: about a minute.

    Of two processes that need it the second waits for the first.
    """
    with FileLock(settings.home / "first_policy.lock"):
        version = champions.initialise(settings.policy, progress=progress)
    HomeFacts.change(settings.home, has_models=True, policy=None)
    return version
