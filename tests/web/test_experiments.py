"""Two versions answer chats: sessions keep theirs, a guardrail and a person end the experiment."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from rlhf_pipeline.cli.context import Workspace
from rlhf_pipeline.cli.init import prepare
from rlhf_pipeline.client import Client
from rlhf_pipeline.core.config import ServingParams, Settings
from rlhf_pipeline.core.errors import ConflictingRequest
from rlhf_pipeline.core.experiments import ExperimentChange, NewExperiment
from rlhf_pipeline.core.records import NewFeedback
from rlhf_pipeline.generate.completions.adapter_server import ADAPTER, BASE_HASH
from rlhf_pipeline.generate.policy import EMBEDDED_POLICY, load_policy
from rlhf_pipeline.improve.served_check import check_served
from tests.vllm_stub import MODEL, VLLMStub
from tests.web.conftest import Web
from tests.web.test_chat import MOON, serve

SHORT_CONTEXT = 24  # tokens: the prompt fits, with a long answer it does not


def register(workspace: Workspace, folder: Path, context: int) -> str:
    """A copy of the embedded policy that takes fewer tokens."""
    shutil.copytree(EMBEDDED_POLICY, folder)
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = context
    (folder / "config.json").write_text(json.dumps(config))
    return workspace.champions.register_policy(str(folder), {"stage": "test"}).label


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """The first policy is deployed; the second is as good, the third takes no prompt."""
    home = tmp_path_factory.mktemp("experiments")
    serving = ServingParams(keep_texts=True)
    settings = Settings(home=home, policy=str(EMBEDDED_POLICY), serving=serving)
    workspace = Workspace(settings)
    prepare(workspace)
    workspace.champions.policy()
    assert register(workspace, home / "second", 255) == "demo.policy@2"
    assert register(workspace, home / "third", SHORT_CONTEXT) == "demo.policy@3"
    with serve(settings) as web:
        yield web


class Users:
    """They chat through OpenAI's client, and like one version."""

    def __init__(self, web: Web):
        token = web.client("approver", "engineer").headers["Authorization"]
        token = token.removeprefix("Bearer ")
        self.api = Client(web.url, token)
        self.openai = openai.OpenAI(base_url=f"{web.url}/v1", api_key=token, max_retries=0)

    def ask(
        self,
        session: str,
        model: str = "demo.policy",
        likes: str | None = None,
        max_tokens: int = 1,
    ) -> str:
        answer = self.openai.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": MOON}],
            metadata={"session_id": session},
            max_tokens=max_tokens,
        )
        if likes is not None:
            value = int(answer.model == likes)
            self.api.send_feedback(NewFeedback(kind="thumbs", value=value, answer_id=answer.id))
        return answer.model


def test_experiment_from_the_first_session_to_roll_back(versions: Web) -> None:
    users = Users(versions)
    api = users.api
    broken = api.start_experiment(
        NewExperiment(name="short", treatment_model_id="demo.policy@3", traffic_split=0.5)
    )
    failed = n = 0
    while api.experiment(broken.experiment_id).experiment.is_live and n < 200:
        n += 1
        try:
            users.ask(f"broken-{n}", max_tokens=SHORT_CONTEXT)
        except openai.BadRequestError:
            failed += 1
    stopped = api.experiment(broken.experiment_id)
    assert (stopped.experiment.status, failed < 30) == ("cancelled", True)
    [miss] = [act for act in stopped.experiment.acts if act.act == "miss"]
    assert "demo.policy@3 did not answer" in miss.reason
    assert "guardrail" in stopped.experiment.acts[-1].reason
    assert {users.ask(f"broken-{i}") for i in range(1, 9)} == {"demo.policy@1"}

    started = api.start_experiment(
        NewExperiment(name="second", treatment_model_id="demo.policy@2", traffic_split=0.1)
    )
    with pytest.raises(ConflictingRequest, match="one at a time"):
        api.start_experiment(NewExperiment(name="x", treatment_model_id="demo.policy@2"))
    number = started.experiment_id
    assert [model.id for model in users.openai.models.list().data] == ["demo.policy"]
    few = {i: users.ask(f"s{i}") for i in range(40)}
    api.change_experiment(number, ExperimentChange(traffic_split=0.5))
    many = {i: users.ask(f"s{i}", likes="demo.policy@2") for i in range(80)}
    assert all(many[i] == "demo.policy@2" for i in few if few[i] == "demo.policy@2")
    assert {i: users.ask(f"s{i}") for i in range(80)} == many
    assert {users.ask(f"s{i}", model="demo.policy@1") for i in range(9)} == {"demo.policy@1"}
    api.change_experiment(number, ExperimentChange(status="paused"))
    assert {users.ask(f"s{i}") for i in range(9)} == {"demo.policy@1"}
    api.change_experiment(number, ExperimentChange(status="running"))

    results = api.experiment(number).results
    assert results is not None
    chart = versions.client("auditor").get(f"/charts/experiments/{number}").json()
    assert chart["panels"][0]["series"][0]["low"][-1] > 0
    assert (results.winner, results.is_broken) == ("treatment", False)
    ended = api.change_experiment(number, ExperimentChange(status="completed", reason="clear"))
    assert (ended.winner, ended.results) == ("treatment", api.experiment(number).results)
    assert users.ask("s1") == "demo.policy@1"
    assert api.deploy_treatment(number, "liked more").promotion is not None
    assert {users.ask(f"s{i}") for i in range(3)} == {"demo.policy@2"}
    assert api.roll_back("demo.policy", "for the test").version == 1
    assert users.ask("s1") == "demo.policy@1"
    assert [experiment.experiment_id for experiment in api.experiments()] == [
        number,
        broken.experiment_id,
    ]


def test_both_arms_are_adapters_of_a_server_and_outlast_restarts(tmp_path: Path) -> None:
    policy = load_policy(EMBEDDED_POLICY)
    stub = VLLMStub(policy)
    settings = Settings(
        home=tmp_path,
        policy=str(EMBEDDED_POLICY),
        completion_backend="openai_compatible",
        base_url=stub.base_url,
        api_model=MODEL,
        load_adapters=True,
    )
    workspace = Workspace(settings)
    prepare(workspace)
    first = workspace.champions.policy()
    for name in ("second", "third"):
        (tmp_path / name / ADAPTER).mkdir(parents=True)
        (tmp_path / name / ADAPTER / BASE_HASH).write_text(first.content_hash)
        (tmp_path / name / "note").write_text(name)
        with workspace.registry.run(name) as run:
            version = workspace.registry.register(
                "policy", tmp_path / name, run=run, parent=first.label
            )
        if name == "second":
            workspace.champions.promote("policy", version, reason="better", actor="test")
    adapters = {"demo.policy@2", "demo.policy@3"}
    sessions = [f"s{i}" for i in range(12)]
    with stub, serve(settings) as web:
        users = Users(web)
        new = NewExperiment(name="x", treatment_model_id="demo.policy@3", traffic_split=0.5)
        number = users.api.start_experiment(new).experiment_id
        arms = {session: users.ask(session) for session in sessions}
        assert set(arms.values()) == set(stub.adapters) == adapters
        assert stub.models[-12:] == list(arms.values())
        stub.adapters.clear()  # the server restarts
        assert {session: users.ask(session) for session in sessions} == arms
        assert set(stub.adapters) == adapters
    check = check_served(workspace.champions, settings)
    assert check is not None
    assert (check.state, "cannot be reached" in check.reason) == ("not checkable", True)
    with serve(settings) as web:  # both restart, and the server is later
        users = Users(web)
        with pytest.raises(openai.InternalServerError, match="cannot be reached"):
            users.ask("s0")
        with VLLMStub(policy, port=stub.server_port) as stub:
            assert {session: users.ask(session) for session in sessions} == arms
        report = users.api.experiment(number)
    assert report.experiment.is_live
    assert report.results is not None
    assert report.results.find("errors").control == 0


def test_blind_votes_on_both_answers_name_the_winner(versions: Web) -> None:
    users, annotator = Users(versions), versions.client("annotator")
    new = NewExperiment(
        name="preferred",
        treatment_model_id="demo.policy@2",
        traffic_split=0.5,
        success_metric="preference",
    )
    number = users.api.start_experiment(new).experiment_id
    assert "given 0 pairs" in str(users.api.experiment(number).preference_note)

    def judge() -> set[str]:
        """Prefer the treatment's answers of all cards dealt now; their comparisons."""
        compared = set()
        leased = annotator.post("/cards:lease", json={"n": 10}).json()["cards"]
        for card in leased:
            assert "demo.policy" not in json.dumps(card)
            assert "experiment" not in json.dumps(card)
            dealt = versions.store.cards.get(card["card_id"])
            compared.add(dealt.comparison_id)
            [texts] = versions.store.comparisons.texts([dealt.comparison_id]).values()
            is_shown_as_a = (texts.model_version_a == "demo.policy@2") is not dealt.is_swapped
            body = {"card_id": card["card_id"], "choice": "a" if is_shown_as_a else "b"}
            key = {"Idempotency-Key": card["card_id"]}
            assert annotator.post("/votes", json=body, headers=key).status_code == 201
        return compared

    compared: set[str] = set()  # a card may be repeated, which is no second vote
    n = 0
    while len(compared) < 25 and n < 200:
        n += 1
        users.ask(f"pair-{n % 100}", max_tokens=8)
        compared |= judge()
    n_votes = len(compared)
    report = users.api.experiment(number)
    assert report.results is not None
    effect = report.results.find("preference")
    n_ties = effect.n_treatment - n_votes  # of equal answers, which gave no card
    assert effect.treatment == pytest.approx((n_votes + n_ties / 2) / effect.n_treatment)
    assert effect.better == "treatment"
    assert report.results.winner == "treatment"
    assert "at most 100% of one" in str(report.preference_note)
    assert versions.client("auditor").get(f"/charts/experiments/{number}").json()["panels"]

    for i in range(6):
        users.ask(f"waiting-{i}", max_tokens=8)
    users.api.change_experiment(number, ExperimentChange(status="paused"))
    users.ask("last")
    assert judge() == set()
    users.api.change_experiment(number, ExperimentChange(status="cancelled"))
