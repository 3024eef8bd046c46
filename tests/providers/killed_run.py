"""A run in a process of its own, to be killed: python killed_run.py STORE_URL BASE_URL N_PROMPTS.
Prints each time it noted something.
"""

import sys

from rlhf_pipeline.generate.completions import (
    CallParams,
    CompletionParams,
    OpenAICompatibleBackend,
    generate,
)
from rlhf_pipeline.store import Store
from tests.providers.generation_runs import prompts_of

PARAMS = CompletionParams(k=2, temperatures=[0.7], top_ps=[1.0], max_new_tokens=20)
CALLS = CallParams(concurrency=8, prompt_price=1, completion_price=1)


def run(store_url: str, base_url: str, n: int) -> None:
    with Store.open(store_url) as store:
        backend = OpenAICompatibleBackend("stub-model", base_url)
        generate(
            prompts_of(n),
            backend,
            PARAMS,
            ledger=store.generation,
            calls=CALLS,
            progress=lambda *progress: print(*progress, flush=True),
        )


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]))
