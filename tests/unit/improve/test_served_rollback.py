"""The outcome of a check is kept, rolls back by setting, and unloads replaced adapters."""

import pytest

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.config import HomeFacts, ServingParams, Settings
from rlhf_pipeline.core.experiments import Experiment, ExperimentAct
from rlhf_pipeline.core.records import utc_now
from rlhf_pipeline.generate.completions import LocalBackend
from rlhf_pipeline.generate.completions.openai_compatible import OpenAICompatibleBackend
from rlhf_pipeline.generate.policy.frozen_exchanges import freeze
from rlhf_pipeline.improve.releases import Releases
from rlhf_pipeline.improve.served_check import REPORT, check_served
from rlhf_pipeline.learn.champions import Champions
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.store import Store
from tests.planted_faults import load, plant
from tests.vllm_stub import MODEL, VLLMStub

LABELS = "demo.policy@1", "demo.policy@2"
TREATMENT = "demo.policy@3"


@pytest.fixture
def home(tmp_path):
    """A home whose two versions hold the embedded policy; the second is deployed."""
    settings = Settings(home=tmp_path, project="demo", serving=ServingParams(roll_back=True))
    HomeFacts.of(settings).write(tmp_path)
    registry = Registry(f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "artifacts", "demo")
    frozen, files = freeze("", load, n_reloads=1), Artefacts(settings.frames)
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        store.migrate()
        champions = Champions(store, registry, tmp_path / "cache")
        for number, label in enumerate(LABELS, 1):
            load().save(tmp_path / label)
            (tmp_path / label / "note").write_text(label)  # equal files would be one version
            with registry.run(label) as run:
                version = registry.register("policy", tmp_path / label, run=run)
            content = frozen.model_copy(update={"version": label}).model_dump_json().encode()
            files.write({files.report_path(REPORT, label): content})
            Releases(champions, settings).deploy(label, reason=f"number {number}", actor="ann")
        assert version.version == 2
        yield champions, settings


def test_difference_rolls_back_once_and_is_kept(home):
    champions, settings = home
    clean = check_served(champions, settings, LocalBackend(load(), LABELS[1]))
    assert (clean.state, champions.policy().version) == ("as judged", 2)
    assert HomeFacts.load(settings.home).served == clean
    wrong = LocalBackend(plant("other adapter"), LABELS[1])
    assert check_served(champions, settings, wrong).rolled_back
    deployed = champions.store.promotions.champion("demo.policy")
    assert (deployed.version, deployed.actor, deployed.rolls_back) == (1, "loop", True)
    assert "other weights" in deployed.reason
    assert check_served(champions, settings, wrong) is None
    still = LocalBackend(plant("other adapter"), LABELS[0])
    assert not check_served(champions, settings, still).rolled_back


def test_difference_alone_rolls_nothing_back(home):
    champions, settings = home
    settings = settings.model_copy(update={"serving": ServingParams()})
    check = check_served(champions, settings, LocalBackend(plant("wrong eos"), LABELS[1]))
    assert (check.state, check.rolled_back) == ("differs", False)
    assert champions.policy().version == 2


def test_adapters_that_serve_no_more_are_unloaded(home):
    champions, settings = home
    with VLLMStub(load()) as stub:
        stub.adapters = dict.fromkeys((*LABELS, TREATMENT, "another"), "folder")
        running = champions.store.experiments.add(
            Experiment(
                experiment_id=0,
                name="x",
                control_model_id=LABELS[1],
                treatment_model_id=TREATMENT,
                traffic_split=0.1,
                status="running",
                success_metric="errors",
                salt="",
                acts=(ExperimentAct(at=utc_now(), act="start", actor="ann"),),
            )
        )
        more = {"base_url": stub.base_url, "load_adapters": True}
        settings = settings.model_copy(update=more)
        backend = OpenAICompatibleBackend(MODEL, stub.base_url)
        assert check_served(champions, settings, backend).state == "as judged"
        assert set(stub.adapters) == {LABELS[1], TREATMENT, "another"}
        ended = running.model_copy(update={"status": "completed"})
        champions.store.experiments.change(running, ended)
        check_served(champions, settings, backend)
        assert set(stub.adapters) == {LABELS[1], "another"}
        stub.policy = plant("int8 weights")
        rounded = check_served(champions, settings, backend)
        assert (rounded.state, rounded.rolled_back) == ("other precision", False)
        serving = ServingParams(roll_back=True, tolerance=0.001)
        settings = settings.model_copy(update={"serving": serving})
        assert check_served(champions, settings, backend).rolled_back
