"""Counts the files that a vote crosses: from the request to its row, and from the row to its pair.

    python docs/trace_vote.py [page.md]    # default: docs/vote-path.md

It casts votes through the API and materialises `votes` and `preference_pairs` in a home of its
own, and notes every function of the checkout that runs. FLOOR names what every request or every
asset runs, whatever it does: it is left out.
"""

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

PAGE = ROOT / "docs" / "vote-path.md"
MOST_FILES = {"From the request to its row": 12, "From the row to its pair": 16}
MOST_LINES = 400
FLOOR = (
    # records, errors, settings, frames and files
    "rlhf_pipeline/core/artefacts.py",
    "rlhf_pipeline/core/config.py",
    "rlhf_pipeline/core/errors.py",
    "rlhf_pipeline/core/files.py",
    "rlhf_pipeline/core/frames.py",
    "rlhf_pipeline/core/object_stores.py",
    "rlhf_pipeline/core/parquet.py",
    "rlhf_pipeline/web/permissions.py",
    "rlhf_pipeline/core/records.py",
    # tables, and the errors of databases
    "rlhf_pipeline/store/faults.py",
    "rlhf_pipeline/store/schema.py",
    # what each run and each asset reports beside its frame
    "assets/delivery.py",
    "resources/",
    "rlhf_pipeline/core/expectations.py",
    "rlhf_pipeline/improve/loop_settings.py",
    "rlhf_pipeline/core/metric_catalogue.py",
    "rlhf_pipeline/watch/metrics/",
    "rlhf_pipeline/registry/",
    "rlhf_pipeline/store/audit_chain.py",
    "rlhf_pipeline/store/database_copy.py",
    "rlhf_pipeline/store/heartbeats.py",
    "rlhf_pipeline/store/homes.py",
    "rlhf_pipeline/store/metric_points.py",
    "rlhf_pipeline/watch/telemetry/",
)


def main(arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory() as home:
        text = render_page(trace(Path(home)))
    Path(arguments[0] if arguments else PAGE).write_text(text)


def trace(home: Path) -> dict[str, dict[str, set[str]]]:
    """By stretch: the functions that ran, by file."""
    os.environ["RLHF_HOME"] = str(home)
    import dagster as dg
    from starlette.testclient import TestClient

    from rlhf_pipeline.application.assets.preference_pairs import preference_pairs
    from rlhf_pipeline.application.assets.votes import votes
    from rlhf_pipeline.application.definitions import definitions_for  # noqa: F401 (see below)
    from rlhf_pipeline.application.resources import resources_for
    from rlhf_pipeline.core.config import Settings
    from rlhf_pipeline.core.records import Role, utc_now
    from rlhf_pipeline.store import Store
    from rlhf_pipeline.web.app import create_app
    from tests.learnt_home import comparisons

    # The definitions are imported although nothing here uses them: a module that the vote's own run
    # imported would count as a file that the vote crosses, since its code runs then.

    settings = Settings(home=home)
    with Store.open(settings.store_url) as store:
        store.migrate()
        pairs = comparisons(4)
        store.comparisons.publish(pairs, published_at=utc_now())
        store.cards.offer(list(pairs["comparison_id"]), overlap=1)
        voter = store.users.add(
            email="ann@example.org", name="ann", roles=[Role.ANNOTATOR], actor="trace"
        )
        secret, _ = store.tokens.issue(
            voter.user_id, kind="api", lifetime=timedelta(days=1), actor="trace", name="trace"
        )
        app = create_app(settings, store)
        headers = {"Authorization": f"Bearer {secret}"}
        with noted() as calls, TestClient(app, base_url="http://127.0.0.1") as client:
            lease = client.post("/api/v1/cards:lease", json={"n": 4}, headers=headers)
            of_votes = []
            for i, card in enumerate(lease.json()["cards"]):
                calls.clear()
                client.post(
                    "/api/v1/votes",
                    json={"card_id": card["card_id"], "choice": "a", "strength": 2},
                    headers=headers | {"Idempotency-Key": f"vote {i}"},
                ).raise_for_status()
                of_votes.append(dict(calls))
            to_row = min(of_votes, key=len)  # the others also fill caches
    with noted() as calls, dg.DagsterInstance.ephemeral() as instance:
        for asset, day in ((votes, utc_now().date().isoformat()), (preference_pairs, None)):
            dg.materialize(
                [votes, preference_pairs],
                selection=[asset],
                partition_key=day,
                resources=resources_for(settings),
                instance=instance,
            )
    return dict(zip(MOST_FILES, (to_row, dict(calls)), strict=True))


@contextmanager
def noted() -> Iterator[dict[str, set[str]]]:
    """The functions of this checkout that run in the block, by file."""
    calls: dict[str, set[str]] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT) and ".venv" not in path.parts:
            name = path.relative_to(ROOT).as_posix().removeprefix("rlhf_pipeline/application/")
            if not name.startswith(("tests/", "docs/", "definitions.py", *FLOOR)):
                calls.setdefault(name, set()).add(
                    frame.f_code.co_qualname.partition(".<locals>")[0]
                )

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def render_page(stretches: dict[str, dict[str, set[str]]]) -> str:
    lines = [
        "# The way of a vote",
        "",
        "`python docs/trace_vote.py` writes this page: the files whose functions run, without the",
        f"floor (`FLOOR` there) of every request or asset. A file has at most {MOST_LINES} lines;",
        "longer ones are marked.",
    ]
    for name, files in stretches.items():
        lines += ["", f"## {name}", "", f"{len(files)} files; at most {MOST_FILES[name]}.", ""]
        lines += ["| file | lines |", "|---|---|"]
        lines += [f"| `{file}` | {_count_lines(file)} |" for file in sorted(files)]
    return "\n".join(lines) + "\n"


def _count_lines(file: str) -> str:
    n = len((ROOT / file).read_text().splitlines())
    return f"**{n}**" if n > MOST_LINES else str(n)


if __name__ == "__main__":
    main(sys.argv[1:])
