"""The asset `completions` with a provider: what it cost and why rows failed stand in its metadata,
the key nowhere.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pydantic import SecretStr

from rlhf_pipeline.application.assets.completions import completions
from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.learn.champions import Champions
from rlhf_pipeline.registry import Registry
from rlhf_pipeline.store import Store
from tests.providers.generation_runs import prompts_of
from tests.providers.stub_provider import Fault, StubProvider

DAY = "2026-01-02"
KEY = "sk-canary-2b8e"
Materialise = Callable[..., dg.ExecuteInProcessResult]


@dg.asset(name="prompts", partitions_def=completions.partitions_def)
def prompts() -> Any:
    return prompts_of(10).assign(day=DAY)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        store.migrate()
        yield store


@pytest.fixture
def materialise(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Materialise:
    monkeypatch.setenv("DAGSTER_HOME", "")
    registry = Registry(
        f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path / "artifacts", "demo", ui="http://localhost"
    )

    def run(stub: StubProvider, **config: Any) -> dg.ExecuteInProcessResult:
        settings = Settings(
            home=tmp_path,
            completion_backend="openai_compatible",
            base_url=stub.base_url,
            api_key=SecretStr(KEY),
            api_model="stub-model",
        )
        resources = {
            "settings": settings,
            "champions": Champions(store, registry, tmp_path / "cache"),
            "store": store,
            "registry": registry,
            "progress": lambda stage: lambda *progress: None,
            "io_manager": dg.mem_io_manager,
        }
        op_config = {
            "k": 2,
            "concurrency": 4,
            "prompt_price": 1.0,
            "completion_price": 2.0,
            **config,
        }
        return dg.materialize(
            [prompts, completions],
            partition_key=DAY,
            resources=resources,
            run_config={"ops": {"completions": {"config": op_config}}},
            raise_on_error=False,
        )

    return run


def metadata(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    [materialisation] = result.asset_materializations_for_node("completions")
    return {name: value.value for name, value in materialisation.metadata.items()}


def test_cost_and_reasons_of_failed_rows_are_in_the_metadata(
    materialise: Materialise, store: Store, capfd: Any
) -> None:
    with StubProvider(
        api_key=SecretStr(KEY), faults=[None, Fault(kind="refusal"), Fault(kind="drop")]
    ) as stub:
        figures = metadata(materialise(stub, budget_per_day=1.0, least_per_prompt=1))
        assert stub.n_calls == 21
        numbers = figures["numbers"]
        assert (
            numbers["n_completions"],
            numbers["n_failed"],
            numbers["failed_refusal"],
            numbers["n_bill_unknown"],
        ) == (19, 1, 1, 1)
        assert "1 failed (1 refusal)" in figures["headline"]
        [(key, spent)] = store.generation.sum_spending("asset", "provider")
        assert key == ("completions", stub.base_url.removeprefix("http://").removesuffix("/v1"))
        assert numbers["tokens_paid"] == spent.n_prompt_tokens + spent.n_tokens
        assert numbers["cost"] == pytest.approx((spent.n_prompt_tokens + 2 * spent.n_tokens) / 1e6)
        again = metadata(materialise(stub, least_per_prompt=1))
        assert stub.n_calls == 22, "only the one that failed is called for again"
    assert (again["n_failed"], again["n_completions"]) == (0, 20)
    assert KEY not in str(figures) + str(again) + "".join(capfd.readouterr())
