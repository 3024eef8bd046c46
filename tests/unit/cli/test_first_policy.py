"""A home without a policy: `rlhf init` leaves one out, and who needs it first registers it."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import initialise
from rlhf_pipeline.core.config import HomeFacts, Settings


def test_first_policy_is_registered_once_when_it_is_needed(
    tiny_policy: Path, tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path)
    initialise(Workspace(settings))
    assert json.loads((tmp_path / "project.json").read_text())["policy"] == "none yet"
    # in place of the embedded one, whose training takes a minute
    workspace = Workspace(settings.model_copy(update={"policy": str(tiny_policy)}))
    with ThreadPoolExecutor(2) as pool:
        labels = {policy.label for policy in pool.map(lambda _: workspace.champions.policy(), "ab")}
    assert labels == {"demo.policy@1"}
    champion = workspace.champions.policy()
    assert workspace.champions.base_policy(champion) == champion
    assert workspace.registry.get("policy", 2) is None
    facts = HomeFacts.load(tmp_path)
    assert facts is not None
    assert (facts.has_models, facts.policy) == (True, None)
