"""What serves is compared with the judged version, on this machine and by servers."""

import re
from datetime import UTC, datetime

import pytest
import torch

from rlhf_pipeline.generate.completions import LocalBackend, TemplateBackend
from rlhf_pipeline.generate.completions.openai_compatible import OpenAICompatibleBackend
from rlhf_pipeline.generate.policy.frozen_exchanges import FrozenPolicy, freeze
from rlhf_pipeline.improve.served_check import compare_served
from tests.planted_faults import FAULTS, apply_adapter, load, plant
from tests.vllm_stub import MODEL, VLLMStub

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LABEL = "demo.policy@2"


@pytest.fixture(scope="module")
def frozen() -> FrozenPolicy:
    return FrozenPolicy.from_json(freeze(LABEL, load, n_reloads=2).model_dump_json())


def check(frozen, policy, **more):
    return compare_served(frozen, LocalBackend(policy, LABEL), NOW, **more)


def ask(frozen, stub, **more):
    backend = OpenAICompatibleBackend(MODEL, stub.base_url)
    return compare_served(frozen, backend, NOW, **more)


def test_clean_reload_is_as_judged(frozen):
    clean = check(frozen, load())
    assert (clean.state, clean.n_requests) == ("as judged", 32)
    assert clean.difference < clean.tolerance < 0.01
    with VLLMStub(load()) as stub:
        served = ask(frozen, stub)
    assert served.state == "as judged"
    assert served.n_requests == len(stub.paths) == 32 * 3 + 2


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_of_this_machine_is_named_within_50_requests(frozen, fault):
    outcome = check(frozen, plant(fault))
    assert outcome.state == ("other precision" if fault == "int8 weights" else "differs")
    assert outcome.reason.startswith(FAULTS[fault][1])
    assert outcome.n_requests <= 50


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - {"shorter context"}))
def test_fault_of_a_vllm_is_named_within_50_requests(frozen, fault):
    with VLLMStub(plant(fault)) as stub:
        outcome = ask(frozen, stub)
    assert outcome.reason.startswith(FAULTS[fault][1])
    assert outcome.n_requests <= 50


def test_vllm_with_short_context_or_stale_cache_is_named(frozen):
    with VLLMStub(load(), max_model_len=128) as stub:
        assert ask(frozen, stub).reason.startswith("truncated context: 128 tokens")
    with VLLMStub(load(), cached=plant("other adapter")) as stub:
        outcome = ask(frozen, stub)
    assert outcome.reason.startswith("stale prefix cache")
    assert outcome.n_requests <= 50


def test_stale_version_and_quantised_weights_are_named(frozen):
    older = plant("other adapter")
    others = [freeze("demo.policy@1", lambda: older, n_reloads=1)]
    stale = check(frozen, older, others=others)
    assert "it answers as demo.policy@1, a stale version" in stale.reason
    apply_adapter(third := load(), seed=1)
    assert "another adapter" in check(frozen, third, others=others).reason
    assert "quantised" in check(frozen, plant("int8 weights"), others=others).reason


def test_server_without_tokenize_is_compared_by_first_tokens(frozen):
    with VLLMStub(load()) as stub:
        stub.is_vllm = False
        clean = ask(frozen, stub)
        assert (clean.state, clean.n_requests) == ("as judged", 1 + 32)
        stub.has_log_p = False
        mute = ask(frozen, stub)
    assert mute.state == "not checkable"
    assert "no log probabilities" in mute.reason
    assert "cannot be reached" in ask(frozen, stub).reason
    with VLLMStub(plant("other adapter")) as stub:
        stub.is_vllm = False
        assert ask(frozen, stub).reason.startswith("other template or weights")
    assert compare_served(frozen, TemplateBackend(), NOW).state == "not checkable"


def test_other_precision_is_as_judged_by_the_named_setting(frozen):
    rounded, older = load(), plant("other adapter")
    for policy in (rounded, older):
        policy.model.to(torch.bfloat16).float()
    for is_vllm in (True, False):
        with VLLMStub(rounded) as stub:
            stub.is_vllm = is_vllm
            first = ask(frozen, stub)
            assert first.state == "other precision"
            tolerance = float(re.search(r"tolerance: ([\d.]+)}", first.reason)[1])
            again = ask(frozen, stub, tolerance=tolerance)
            assert (again.state, again.n_requests <= 50) == ("as judged", True)
    others = [freeze("demo.policy@1", lambda: plant("other adapter"), n_reloads=1)]
    with VLLMStub(older) as stub:
        for more in ({}, {"tolerance": tolerance / 2}):
            stale = ask(frozen, stub, others=others, **more)
            assert stale.state == "differs"
            assert "a stale version" in stale.reason
            assert stale.n_requests <= 50
    with VLLMStub(rounded, cached=older) as stub:
        cached = ask(frozen, stub, tolerance=tolerance)
    assert cached.reason.startswith("stale prefix cache")
    assert cached.n_requests <= 50


def test_setting_overrides_the_tolerance(frozen):
    assert check(frozen, plant("int8 weights"), tolerance=2.0).state == "as judged"
