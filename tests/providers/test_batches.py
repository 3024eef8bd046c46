"""OpenAI's Batch API against the STUB: submitted once, found again by whoever goes on, noted and
billed like any call.
"""

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import select, update

from rlhf_pipeline.completions import (
    AnthropicBackend,
    CallParams,
    CompletionParams,
    Generation,
    OpenAICompatibleBackend,
    generate,
)
from rlhf_pipeline.completions.openai_batches import OpenAIBatch, OpenAIBatches
from rlhf_pipeline.errors import (
    BackendUnavailable,
    CompletionError,
    ConfigurationError,
    ProviderParked,
)
from rlhf_pipeline.processes import make_owner
from rlhf_pipeline.protocols import NO_CALLS_SUFFIX
from rlhf_pipeline.records import utc_now
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.generation import GenerationLedger
from rlhf_pipeline.store.schema import generation_batches
from tests.providers.asking import prompts_of
from tests.providers.stub_provider import Fault, StubProvider

ROOT = Path(__file__).parents[2]
KEY = SecretStr("sk-canary-b47c")
PARAMS = CompletionParams(k=2, temperatures=[0.7], top_ps=[1.0], max_new_tokens=20)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'store.db'}") as store:
        store.migrate()
        yield store


def ask(
    store: Store,
    stub: StubProvider,
    *,
    n: int = 5,
    ledger: GenerationLedger | None = None,
    **calls: Any,
) -> Generation:
    how: dict[str, Any] = {
        "batch": True,
        "batch_poll_s": 0.05,
        "backoff_s": 0.01,
        "prompt_price": 1.0,
        "completion_price": 1.0,
    }
    backend = OpenAICompatibleBackend("stub-model", stub.base_url, KEY)
    return generate(
        prompts_of(n),
        [backend],
        PARAMS,
        ledger=ledger or store.generation,
        calls=CallParams(**(how | calls)),
    )


def test_a_batch_makes_what_single_calls_would_have_made_and_costs_what_was_counted(
    store: Store, tmp_path: Path
) -> None:
    with StubProvider(api_key=KEY, batch_s=0.3) as stub:
        made = ask(store, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
        counted = stub.counters
        shutil.rmtree(tmp_path, ignore_errors=True)
        tmp_path.mkdir()
        with Store.open(f"sqlite:///{tmp_path / 'other.db'}") as other:
            other.migrate()
            singly = ask(other, stub, batch=False)
    assert made.frame.drop(columns="latency_ms").equals(singly.frame.drop(columns="latency_ms"))
    [spent] = made.spent.values()
    assert (spent.n_calls, spent.n_prompt_tokens, spent.n_tokens) == (
        10,
        counted.n_prompt_tokens,
        counted.n_tokens,
    )
    assert made.cost == pytest.approx((counted.n_prompt_tokens + counted.n_tokens) / 1e6)


def test_the_same_again_submits_nothing(store: Store) -> None:
    with StubProvider() as stub:
        first = ask(store, stub)
        assert ask(store, stub).frame.equals(first.frame)
        assert stub.batches.n_submitted == 1


def test_what_failed_for_a_passing_reason_is_in_the_next_batch_and_what_never_passes_fails_its_row(
    store: Store,
) -> None:
    faults = [
        None,
        Fault(kind="status", status=500),
        Fault(kind="refusal"),
        Fault(kind="status", status=429),
    ]
    with StubProvider(faults=faults) as stub:
        made = ask(store, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (2, 12)
    assert made.kinds == {"refusal": 1}
    calls = list(store.generation.read_calls(made.run_id))
    assert Counter(call["kind"] for call in calls) == {
        "succeeded": 9,
        "server_error": 1,
        "rate_limited": 1,
        "refusal": 1,
    }


def test_a_batch_that_takes_longer_than_a_run_waits_parks_it_and_the_next_run_finds_it(
    store: Store,
) -> None:
    with StubProvider(batch_s=600) as stub:
        with pytest.raises(ProviderParked, match="10 of 10 completions wait"):
            ask(store, stub, max_pause_s=0.1)
        [run] = store.generation.paused_runs()
        assert run.states == {"leased": 10}, "by the batch"
        stub.batches.finish()
        made = ask(store, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
    assert made.frame["error"].isna().all()
    assert store.generation.paused_runs() == []


WAITING = """
import sys
from rlhf_pipeline.completions import (
    CallParams, CompletionParams, OpenAICompatibleBackend, generate)
from rlhf_pipeline.store import Store
from tests.providers.asking import prompts_of
from tests.providers.test_batches import PARAMS
with Store.open(sys.argv[1]) as store:
    backend = OpenAICompatibleBackend("stub-model", sys.argv[2])
    generate(
        prompts_of(5), [backend], PARAMS, ledger=store.generation,
        calls=CallParams(batch=True, batch_poll_s=float(sys.argv[3]), backoff_s=0.01))
"""


def test_kill_9_while_a_batch_is_under_way_pays_for_nothing_twice(
    store: Store, tmp_path: Path
) -> None:
    with StubProvider(batch_s=3.0) as stub:
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                WAITING,
                f"sqlite:///{tmp_path / 'store.db'}",
                stub.base_url,
                "60",
            ],
            cwd=ROOT,
        )
        deadline = time.monotonic() + 60
        while not (
            stub.batches.n_submitted and store.generation.list_runs()[0].states == {"leased": 10}
        ):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        made = ask(store, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
    assert made.frame["error"].isna().all()
    assert made.n_unknown == 0


def test_a_refused_key_and_an_unknown_model_close_the_provider(store: Store) -> None:
    with StubProvider(api_key=SecretStr("another")) as stub:
        with pytest.raises(BackendUnavailable, match="RLHF_API_KEY") as refused:
            ask(store, stub)
        assert KEY.get_secret_value() not in str(refused.value)
    with StubProvider(model="another") as stub:
        with pytest.raises(BackendUnavailable, match="RLHF_API_MODEL"):
            ask(store, stub)
        stub.repair()
        assert ask(store, stub).frame["error"].isna().all()


def test_a_budget_holds_for_what_a_batch_may_cost_at_most(store: Store) -> None:
    with StubProvider() as stub:
        made = ask(store, stub, n=20, budget_per_run=0.0005)
        counted = stub.counters
    assert 0 < counted.n_calls < 40
    assert made.cost <= 0.0005
    assert set(made.kinds) == {"budget"}


def test_a_backend_without_a_batch_api_says_so(store: Store) -> None:
    with (
        StubProvider() as stub,
        pytest.raises(ConfigurationError, match="anthropic has no Batch API"),
    ):
        generate(
            prompts_of(1),
            [AnthropicBackend("stub-model", stub.base_url)],
            PARAMS,
            ledger=store.generation,
            calls=CallParams(batch=True),
        )


def states(store: Store) -> dict[str, int]:
    [run] = store.generation.list_runs()
    return dict(run.states)


def batch_rows(store: Store) -> list[Any]:
    with store.database.read_transaction() as connection:
        return list(connection.execute(select(generation_batches)))


def change_batches(store: Store, **values: Any) -> None:
    with store.database.write_transaction() as connection:
        connection.execute(update(generation_batches).values(values))


@pytest.mark.parametrize("host", ["this host", "another host"])
def test_a_batch_whose_follower_died_is_taken_over_and_not_paid_for_twice(
    store: Store, host: str
) -> None:
    with StubProvider(batch_s=600) as stub:
        with pytest.raises(ProviderParked):
            ask(store, stub, max_pause_s=0.1)
        here, _, _, _ = make_owner().rsplit("/", 3)
        where, ends_s = (here, 600) if host == "this host" else ("elsewhere", 1)
        change_batches(
            store,
            owner=f"{where}/4194000/1.00/0{NO_CALLS_SUFFIX}",
            leased_until=utc_now() + timedelta(seconds=ends_s),
        )
        stub.batches.finish()
        made = ask(store, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
    assert made.frame["error"].isna().all()
    assert (made.n_unknown, made.n_attempts) == (0, 10)


def test_a_batch_that_another_process_follows_is_awaited(store: Store) -> None:
    ledger = GenerationLedger(store.database, store.completions_cache)
    with StubProvider(batch_s=600) as stub:
        with pytest.raises(ProviderParked):
            ask(store, stub, max_pause_s=0.1)
        [run] = store.generation.list_runs()
        other, lane = f"otherhost/1/1.00/0{NO_CALLS_SUFFIX}", batch_rows(store)[0]
        [taken] = ledger.take_batches(
            run.run_id, other, (lane.provider, lane.model), is_dead=lambda _: False
        )
        assert len(taken.claims) == 10
        stub.batches.finish()
        ended: list[Generation] = []
        mine = threading.Thread(target=lambda: ended.append(ask(store, stub)))
        mine.start()
        time.sleep(1.0)
        assert (states(store), stub.batches.n_submitted) == ({"leased": 10}, 1)
        ledger.release(run.run_id, other)
        mine.join(30)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
    [made] = ended
    assert made.frame["error"].isna().all()


def test_a_batch_that_is_refused_as_a_whole_fails_its_rows_once_and_no_later_run(
    store: Store,
) -> None:
    with StubProvider() as stub:
        stub.batches.refuses_next = "too many lines"
        with pytest.raises(BackendUnavailable, match="too many lines"):
            ask(store, stub)
        assert states(store) == {"failed": 10}
        made = ask(store, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (2, 10)
    assert made.frame["error"].isna().all()


def test_a_refused_batch_of_one_model_is_nothing_to_another(store: Store) -> None:
    with StubProvider() as stub, StubProvider() as other:
        stub.batches.refuses_next = "too many lines"
        backends = [
            OpenAICompatibleBackend("stub-model", each.base_url, KEY) for each in (stub, other)
        ]
        how = CallParams(batch=True, batch_poll_s=0.05, backoff_s=0.01)
        made = generate(prompts_of(5), backends, PARAMS, ledger=store.generation, calls=how)
        assert (stub.n_calls, other.n_calls) == (0, 10)
        again = generate(prompts_of(5), backends, PARAMS, ledger=store.generation, calls=how)
        assert (stub.n_calls, other.n_calls) == (10, 10)
    assert made.kinds == {"bad_request": 10}
    assert again.frame["error"].isna().all()


def test_a_batch_whose_making_nobody_heard_of_is_not_made_twice(store: Store) -> None:
    with StubProvider() as stub:
        stub.batches.n_unheard = 1
        made = ask(store, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
    assert made.frame["error"].isna().all()


def test_what_a_batch_made_is_read_also_where_the_budget_is_spent_by_then(store: Store) -> None:
    with StubProvider(batch_s=600) as stub:
        with pytest.raises(ProviderParked):
            ask(store, stub, max_pause_s=0.1, budget_per_day=1.0)
        stub.batches.finish()
        made = ask(store, stub, budget_per_day=0.0)
        assert stub.batches.n_submitted == 1
    assert made.frame["error"].isna().all()


def test_two_processes_of_one_run_submit_each_request_once_however_they_meet(
    store: Store, tmp_path: Path
) -> None:
    """Requests fail and come back open while both look: what one submits the other has not seen in
    the list it read before.
    """
    chances = [(0.5, Fault(kind="status", status=500))]
    with StubProvider(batch_s=0.1, chances=chances, seed=3) as stub:
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                WAITING,
                f"sqlite:///{tmp_path / 'store.db'}",
                stub.base_url,
                "0.01",
            ],
            cwd=ROOT,
        )
        deadline = time.monotonic() + 60
        while not stub.batches.n_submitted:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        made = ask(store, stub, batch_poll_s=0.01, prompt_price=None, completion_price=None)
        assert process.wait(60) == 0
        assert stub.counters.n_billed == 10
        assert len(list(store.generation.read_calls(made.run_id))) == stub.n_calls
    assert made.frame["error"].isna().all()
    assert states(store) == {"succeeded": 10}


class KilledError(Exception):
    """Stands for a kill -9: the ledger is left as it was."""


def killed_at(store: Store, stub: StubProvider, place: str) -> None:
    """Ask in a process that is killed at this place of submitting a batch."""

    class Dying(GenerationLedger):
        is_dead = False

        def begin_batch(self, submission_id: str) -> Any:
            if place == "before submitting":
                self.is_dead = True
                raise KilledError
            return super().begin_batch(submission_id)

        def name_batch(self, submission_id: str, batch_id: str) -> None:
            self.is_dead = True
            raise KilledError

        def release(self, *asked: Any, **more: Any) -> None:
            if not self.is_dead:
                super().release(*asked, **more)

    with pytest.raises(KilledError):
        ask(store, stub, ledger=Dying(store.database, store.completions_cache))
    here, _, _, _ = make_owner().rsplit("/", 3)
    change_batches(store, owner=f"{here}/4194000/1.00/0{NO_CALLS_SUFFIX}")


def test_a_process_killed_before_it_submits_has_spent_nothing(store: Store) -> None:
    with StubProvider() as stub:
        killed_at(store, stub, "before submitting")
        assert (stub.batches.n_submitted, states(store)) == (0, {"leased": 10})
        made = ask(store, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
    assert (made.n_unknown, made.n_attempts) == (0, 10)


def test_a_batch_is_found_by_our_id_after_a_kill_while_it_was_submitted(store: Store) -> None:
    with StubProvider() as stub:
        killed_at(store, stub, "while submitting")
        [row] = batch_rows(store)
        [batch] = stub.batches._batches.values()
        assert row.batch_id is None
        assert batch["metadata"] == {"rlhf_submission": row.submission_id}
        made = ask(store, stub)
        assert (stub.batches.n_submitted, stub.n_calls) == (1, 10)
    assert (made.n_unknown, made.n_attempts) == (0, 10)


def test_a_batch_that_is_not_found_is_lost_and_asked_for_again_only_on_demand(
    store: Store,
) -> None:
    with StubProvider() as stub:
        killed_at(store, stub, "while submitting")
        stub.batches.forgets = frozenset({"list"})
        for _ in range(2):
            with pytest.raises(CompletionError, match=r"may be billed.*--retry-lost"):
                ask(store, stub)
        assert states(store) == {"failed": 10}
        [run] = store.generation.list_runs()
        assert (run.spent.n_unknown, run.spent.cost_unknown > 0) == (10, True)
        assert {call["kind"] for call in store.generation.read_calls(run.run_id)} == {"lost"}
        made = ask(store, stub, retry_lost=True)
        assert stub.batches.n_submitted == 2
    assert made.frame["error"].isna().all()
    assert made.n_unknown == 10


def test_a_batch_that_the_provider_does_not_know_is_kept_for_another_key(store: Store) -> None:
    with StubProvider(batch_s=600) as stub:
        with pytest.raises(ProviderParked):
            ask(store, stub, max_pause_s=0.1)
        stub.batches.forgets = frozenset({"id"})
        with pytest.raises(BackendUnavailable, match=r"does not know the batch batch_1.*KEY"):
            ask(store, stub)
        assert states(store) == {"leased": 10}
        stub.batches.forgets = frozenset()
        stub.batches.finish()
        assert ask(store, stub).frame["error"].isna().all()
        assert stub.batches.n_submitted == 1


def test_a_provider_that_asks_for_more_patience_than_a_run_has_parks_it(store: Store) -> None:
    with StubProvider() as stub:
        stub.batches.wait_s = 3_600
        began = time.monotonic()
        with pytest.raises(ProviderParked, match="asks for a wait of 3,600 s"):
            ask(store, stub, max_pause_s=1.0)
        assert time.monotonic() - began < 20
        [run] = store.generation.paused_runs()
        assert run.states == {"open": 10}
        assert run.parked_until is not None
        assert (run.parked_until - utc_now()).total_seconds() == pytest.approx(3_600, abs=60)
        stub.batches.wait_s = None
        made = ask(store, stub)
    assert made.frame["error"].isna().all()


def test_batches_that_find_no_room_in_the_providers_queue_are_halved_until_they_do(
    store: Store,
) -> None:
    with StubProvider(batch_s=0.1) as stub:
        stub.batches.most_requests = 3
        made = ask(store, stub)
        assert stub.batches.sizes[:3] == [10, 5, 2]
        # what succeeded is doubled, at most to twice the room
        assert max(stub.batches.sizes[3:]) <= 2 * stub.batches.most_requests
        assert stub.n_calls == 10, "what was refused was not called"
    assert made.frame["error"].isna().all()
    assert made.n_attempts == 10


def test_who_goes_on_begins_with_the_size_that_the_last_batch_had_room_for(store: Store) -> None:
    with StubProvider(batch_s=0.1) as stub:
        stub.batches.most_requests = 3
        with pytest.raises(ProviderParked):
            ask(store, stub, max_pause_s=0.0)
        assert stub.batches.sizes == [10]
        made = ask(store, stub)
        assert stub.batches.sizes[:3] == [10, 5, 2]
    assert made.frame["error"].isna().all()


def test_where_not_even_one_request_finds_room_the_provider_is_given_up_and_later_runs_get_on(
    store: Store,
) -> None:
    with StubProvider() as stub:
        stub.batches.most_requests = 0
        with pytest.raises(BackendUnavailable, match="Enqueued token limit reached"):
            ask(store, stub)
        assert stub.batches.sizes == [10, 5, 2, 1]
        assert states(store) == {"failed": 10}
        stub.batches.most_requests = 4
        made = ask(store, stub)
        assert stub.batches.sizes[4:] == [1, 2, 4, 3]
    assert made.frame["error"].isna().all()


# --- files that are not as they should be
# -----------------------------------------------------------------------------------------------


def with_outputs(stub: StubProvider, change: Callable[[list[str]], list[str]]) -> None:
    """From now on what comes of a batch is kept changed, line by line."""
    whole = stub.batches._store_file
    is_output = b'"response"'
    stub.batches._store_file = lambda content: whole(  # type: ignore[method-assign]
        "\n".join(change(content.decode().split("\n"))).encode()
        if is_output in content
        else content
    )


def gone(stub: StubProvider, batch_id: str, *fields: str) -> None:
    """Files of a batch, deleted once it is over."""
    stub.batches._due[batch_id] = 0
    batch = stub.batches._refresh_batch(batch_id)
    assert batch["status"] == "completed"
    for field in fields:
        stub.batches._files.pop(batch[field], None)


def older(store: Store, stub: StubProvider, batch_id: str, seconds: float) -> None:
    """A batch that was submitted so long ago."""
    stub.batches._batches[batch_id]["created_at"] -= seconds
    change_batches(store, submitted_at=utc_now() - timedelta(seconds=seconds))


def spoilt(stub: StubProvider, field: str, spoil: Callable[[bytes], bytes], n: int = 1) -> None:
    """The next n times that this file of a batch is asked for, something else comes, with a status
    of 200.
    """
    whole, left = stub.batches.answer, n

    def answer(
        method: str, path: str, headers: dict[str, str], content: bytes
    ) -> tuple[int, str, bytes] | None:
        nonlocal left
        said = whole(method, path, headers, content)
        mine = {f"/v1/files/{batch[field]}/content" for batch in stub.batches._batches.values()}
        if not left or said is None or path not in mine:
            return said
        left -= 1
        return said[0], said[1], spoil(said[2])

    stub.batches.answer = answer  # type: ignore[method-assign]


def test_a_line_that_is_missing_is_booked_at_its_worst(store: Store) -> None:
    with StubProvider() as stub:
        with_outputs(stub, lambda lines: lines[1:] if len(lines) == 10 else lines)
        made = ask(store, stub)
        assert stub.batches.sizes == [10, 1]
    assert Counter(call["kind"] for call in store.generation.read_calls(made.run_id)) == {
        "succeeded": 10,
        "garbled": 1,
    }
    assert made.n_unknown == 1


def test_files_of_a_batch_that_was_noted_are_needed_no_more(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    whole = OpenAIBatches.fetch_replies

    async def noting(self: OpenAIBatches, batch: OpenAIBatch, *more: Any, **how: Any) -> Any:
        read.append(batch.batch_id)
        return await whole(self, batch, *more, **how)

    with StubProvider(batch_s=0.0, faults=[Fault(kind="status", status=500)]) as stub:
        submitted = stub.batches._submit

        def slower_next(asked: dict[str, Any]) -> dict[str, Any]:
            made = submitted(asked)
            stub.batches.batch_s = 600
            return made

        stub.batches._submit = slower_next  # type: ignore[method-assign]
        with pytest.raises(ProviderParked):
            ask(store, stub, max_pause_s=2.0)
        assert stub.batches.sizes == [10, 1]
        gone(stub, "batch_1", "output_file_id", "error_file_id")
        older(store, stub, "batch_1", 300_000)
        stub.batches._due["batch_2"] = 0
        monkeypatch.setattr(OpenAIBatches, "fetch_replies", noting)
        made = ask(store, stub)
        assert stub.n_calls == 11
    assert made.frame["error"].isna().all()
    assert made.n_unknown == 0
    assert read == ["batch_2"]


def test_what_stood_in_a_file_that_is_gone_is_booked_at_its_worst_and_asked_for_again(
    store: Store,
) -> None:
    with StubProvider(batch_s=600) as stub:
        with pytest.raises(ProviderParked):
            ask(store, stub, max_pause_s=0.1)
        gone(stub, "batch_1", "output_file_id")
        older(store, stub, "batch_1", 300_000)
        stub.batches.batch_s = 0
        made = ask(store, stub)
        assert stub.batches.sizes == [10, 10]
    assert made.frame["error"].isna().all()
    assert Counter(call["kind"] for call in store.generation.read_calls(made.run_id)) == {
        "cancelled": 10,
        "succeeded": 10,
    }
    assert made.n_unknown == 10


def test_a_result_that_is_not_there_yet_is_not_asked_for_again(store: Store) -> None:
    with StubProvider(batch_s=600) as stub:
        with pytest.raises(ProviderParked):
            ask(store, stub, max_pause_s=0.1)
        gone(stub, "batch_1")
        output = stub.batches._refresh_batch("batch_1")["output_file_id"]
        late = stub.batches._files.pop(output)
        with pytest.raises(
            ProviderParked,
            match=r"batch_1 cannot be read yet: .* does not show file-1 yet.*10 of 10 completions "
            r"wait",
        ):
            ask(store, stub)
        assert states(store) == {"leased": 10}
        stub.batches._files[output] = late
        made = ask(store, stub)
        assert (stub.batches.sizes, stub.n_calls) == ([10], 10)
    assert made.frame["error"].isna().all()
    assert made.n_unknown == 0


def test_a_result_of_which_nothing_can_be_read_parks_the_run_and_is_lost_once_it_is_old(
    store: Store,
) -> None:
    with StubProvider(batch_s=600) as stub:
        with pytest.raises(ProviderParked):
            ask(store, stub, max_pause_s=0.1)
        gone(stub, "batch_1")
        spoilt(
            stub, "output_file_id", lambda content: b"<html><body>One moment</body></html>\n", n=4
        )
        with pytest.raises(
            ProviderParked,
            match=r"batch_1 cannot be read yet: .*nothing readable in file-1",
        ):
            ask(store, stub, max_attempts=3)
        assert states(store) == {"leased": 10}
        older(store, stub, "batch_1", 300_000)
        stub.batches.batch_s = 0
        made = ask(store, stub)
        assert stub.batches.sizes == [10, 10]
    assert made.frame["error"].isna().all()
    assert Counter(call["kind"] for call in store.generation.read_calls(made.run_id)) == {
        "garbled": 10,
        "succeeded": 10,
    }
    assert made.n_unknown == 10


def test_a_result_of_one_provider_not_yet_there_keeps_nothing_of_another_waiting_and_is_read_later(
    store: Store,
) -> None:
    with StubProvider(batch_s=600) as stub, StubProvider() as other:
        backends = [
            OpenAICompatibleBackend("stub-model", each.base_url, KEY) for each in (stub, other)
        ]

        def both(**more: Any) -> Generation:
            how = CallParams(batch=True, batch_poll_s=0.05, backoff_s=0.01, **more)
            return generate(prompts_of(5), backends, PARAMS, ledger=store.generation, calls=how)

        with pytest.raises(ProviderParked):
            both(max_pause_s=0.1)
        gone(stub, "batch_1")
        output = stub.batches._batches["batch_1"]["output_file_id"]
        late = stub.batches._files.pop(output)
        with pytest.raises(ProviderParked, match="batch_1 cannot be read yet"):
            both()
        assert states(store) == {"leased": 10, "succeeded": 10}
        stub.batches._files[output] = late
        made = both()
        assert (stub.batches.sizes, other.batches.sizes) == ([10], [10])
    assert made.frame["error"].isna().all()


def change_answers(
    stub: StubProvider, change: Callable[[int, dict[str, Any]], dict[str, Any]]
) -> None:
    """How batches are told of from now on, by the number of the look."""
    whole, n = stub.batches._refresh_batch, 0

    def worked_on(name: str) -> dict[str, Any]:
        nonlocal n
        n += 1
        return whole(name) | change(n, whole(name))

    stub.batches._refresh_batch = worked_on  # type: ignore[method-assign]


def test_a_provider_whose_batches_all_end_without_a_result_is_not_asked_for_ever(
    store: Store,
) -> None:
    with StubProvider() as stub:
        change_answers(stub, lambda n, batch: {"status": "cancelled", "output_file_id": None})
        with pytest.raises(CompletionError, match=r"batch_2 is cancelled, and did not process it"):
            ask(store, stub, max_attempts=2)
        assert stub.batches.sizes == [10, 10]
    [run] = store.generation.list_runs()
    assert (run.states, run.spent.cost, run.spent.n_unknown) == ({"failed": 10}, 0, 0)


def test_what_a_batch_made_before_it_failed_is_kept(store: Store) -> None:
    with StubProvider(batch_s=600) as stub:
        with pytest.raises(ProviderParked):
            ask(store, stub, max_pause_s=0.1)
        gone(stub, "batch_1")
        batch = stub.batches._batches["batch_1"]
        stub.batches._refuse("batch_1", "broken", "the disk is full")
        output = batch["output_file_id"]
        stub.batches._files[output] = b"\n".join(stub.batches._files[output].split(b"\n")[:7])
        with pytest.raises(BackendUnavailable, match="the disk is full"):
            ask(store, stub)
        assert states(store) == {"succeeded": 7, "failed": 3}
        stub.batches.batch_s = 0
        made = ask(store, stub)
        assert stub.batches.sizes == [10, 3]
    assert made.frame["error"].isna().all()
    assert made.n_unknown == 0
