"""Carries out the gate's verdict in a process that kills itself with -9 at a given moment."""

import os
import signal
from typing import Any

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.improve.gate_decisions import conclude
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.store.cards import Cards
from rlhf_pipeline.store.gate_sessions import GateSessions
from rlhf_pipeline.store.promotions import Gates, Promotions

# in the order of the steps
MOMENTS: dict[str, tuple[Any, str]] = {
    "before the decision is stored": (Gates, "record"),
    "before the version is tagged": (Registry, "set_version_tags"),
    "before the promotion is stored": (Promotions, "record"),
    "before the alias moves": (Registry, "follow"),
    "before the cards are withdrawn": (Cards, "withdraw"),
    "before the session is closed": (GateSessions, "close"),
}


def conclude_until_death(moment: str) -> None:
    workspace = Workspace.open()
    owner, step = MOMENTS[moment]
    promotions = workspace.store.promotions

    def die(*_: Any, **__: Any) -> None:
        served = promotions.champion("demo.policy")
        if step != "follow" or (served and served.version == 2):  # not what served before
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, step, die)
    conclude(workspace.champions, workspace.settings)
