"""The sensor asks for a check of the model server; the job carries it out and keeps the outcome."""

from collections.abc import Callable
from typing import Any

from rlhf_pipeline.core.config import HomeFacts
from rlhf_pipeline.generate.policy import EMBEDDED_POLICY, load_policy
from tests.planted_faults import change_end
from tests.vllm_stub import MODEL, VLLMStub


def test_server_is_checked_after_promotion_and_once_an_hour(
    make_project: Callable[..., Any],
) -> None:
    with VLLMStub(load_policy(EMBEDDED_POLICY)) as stub:
        project = make_project(
            completion_backend="openai_compatible",
            base_url=stub.base_url,
            api_model=MODEL,
            load_adapters=True,
        )
        stub.policy = stub.cached = project.champions.load_policy()
        stub.max_model_len = stub.policy.context_length
        (request,) = project.tick("served_check").run_requests
        assert request.run_key.startswith("served_check:demo.policy@1:1:")
        project.run("served_check", tags={"dagster/run_key": request.run_key})
        assert HomeFacts.load(project.settings.home).served.state == "as judged"
        assert "requested before" in project.tick("served_check").skip_message
        change_end(stub.policy)
        project.run("served_check")
        check = HomeFacts.load(project.settings.home).served
    assert check.reason.startswith("other end token")
    local = make_project(completion_backend="template")
    assert "from this machine" in local.tick("served_check").skip_message
