"""The house's import rules, read from the source: who may import whom, and which library has which
single owner.

Imports inside functions count. A change of these rules is a change of this file, in the same
commit, with its reason.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from sqlalchemy import Table

from rlhf_pipeline.core import frames
from rlhf_pipeline.core.frames import FrameSchema
from rlhf_pipeline.core.records import Vote
from rlhf_pipeline.feedback.datasets import preference
from rlhf_pipeline.store import schema

ROOT = Path(__file__).parent.parent
LIBRARY = ROOT / "rlhf_pipeline"
APPLICATION = ("assets", "resources", "jobs", "sensors", "driver")

# Modules of core: each imports only earlier ones.
CORE = [
    "records",
    "monitoring",  # records of metric points and alerts, for store, web and client
    "errors",
    "curation",  # records of data sets, for store, stages, web and client
    "releases",  # records of releases, for store, stages, web and client
    "files",
    "terminal",
    "processes",  # names of ledger workers, of leases and of web servers
    "parameters",
    "documents",
    "conversations",  # how every stage reads a prompt
    "intervals",  # Wilson and the bootstrap, of arrays
    "frames",
    "parquet",
    "row_files",
    "protocols",
    "plugins",
    "alert_targets",
    "config",
    "api_types",  # the records of the REST API, shared by store, web and client
    "secret_files",  # keys and passwords: backends and alerts use them, log lines hide them
    "metric_catalogue",  # unit and meaning of every metric, for alerts, telemetry and web
    # a file is put, got and listed in one place, whether below a folder or an fsspec URL
    "object_stores",
    "artefacts",  # paths of frames and records, needed by the IO manager and the command line
    "expectations",
]
# The order of the code is the order of the loop.
STAGES = ["generate", "feedback", "learn", "watch", "improve"]
# The order inside a stage's room, where it has one.
INSIDE: dict[str, list[str]] = {
    "core": CORE,
    "generate": ["prompts", "policy", "completions", "comparisons"],
    "feedback": ["votes", "datasets"],
    "learn": ["reward_model", "calibration", "champions"],
    "watch": ["reflection", "drift", "metrics", "telemetry", "alerts"],
    "improve": [
        "evaluation",
        "retraining",
        "reward_training",
        "loop_settings",
        "evaluation_sets",
        "curated_sets",
        "releases",
        "experiments",
    ],
}
ALLOWED: dict[str, set[str]] = {
    "core": set(),
    **{room: {"core", *STAGES[:i]} for i, room in enumerate(STAGES)},
    "store": {"core"},
    "registry": {"core"},
    # somebody else's program installs it: it speaks HTTP, and knows no store
    "client": {"core"},
    # pictures and pages of what stages return; they read no storage
    "reports": {"core", *STAGES},
    # simulated people of known taste, and what plug-in authors run against their classes
    "simulation": {"core", *STAGES, "reports"},
    "web": {"core", *STAGES, "store", "registry", "reports"},
    # it serves the web app; the terminal votes by the page's own checks, and chats as a client
    "cli": {"core", *STAGES, "store", "registry", "reports", "simulation", "web", "client"},
}
# Where an arrow still runs up. Store and registry are handed in; these name their classes.
EXCEPTIONS: dict[str, set[str]] = {
    # the one place where store, registry and models meet, so that assets, cli and web serve the
    # same champion
    "learn.champions": {"store", "registry", "watch.drift", "improve.retraining"},
    "improve.reward_training": {"store", "registry", "watch.drift", "improve"},
    "watch.alerts": {"store", "improve.retraining", "improve.loop_settings"},
    "watch.metrics": {"store", "watch.metrics.policy_intervals"},
    "improve.loop_settings": {"store"},
    "improve.evaluation_sets": {"store"},
    "improve.gate_sessions": {"store"},  # it freezes, asks and reads what the gate needs of votes
    "improve.curated_sets": {"store"},
    "improve.lineage": {"store"},  # it follows ids through tables and files, and writes nothing
    # what the registry and the history of promotions say together
    "improve.releases": {"store", "registry"},
    "improve.experiments": {"store"},  # it measures by the log of answers and their feedback
}

OWNERS: dict[str, tuple[str, ...]] = {
    "dagster": (),
    "sqlalchemy": ("store/", "registry/faults.py"),  # MLflow lets its errors through
    "alembic": ("store/",),
    "psycopg2": ("store/",),
    "mlflow": ("registry",),
    "evidently": ("learn/calibration/evidently_report.py", "watch/drift/report.py"),
    "frouros": ("watch/drift/",),
    "great_expectations": ("core/expectations.py",),
    "fastapi": ("web/",),
    "starlette": ("web/",),
    "uvicorn": ("web/",),
    # of chat templates, by transformers, its errors alone
    "jinja2": ("web/", "reports/", "generate/prompts/", "generate/policy/"),
    "matplotlib": ("reports/",),
    "argon2": ("web/",),
    "itsdangerous": ("web/",),
    # the address of a webhook is checked before it is connected to
    "httpx": ("client.py", "watch/alerts/channels.py"),
    "apprise": ("watch/alerts/channels.py",),
    "standardwebhooks": ("watch/alerts/channels.py",),
    "prometheus_client": ("watch/telemetry/prometheus.py",),
    "opentelemetry": ("watch/telemetry/otlp.py",),
}
HEAVY = {
    "torch",
    "transformers",
    "trl",
    "mlflow",
    "evidently",
    "great_expectations",
    "frouros",
    "sklearn",
    "datasets",
    "matplotlib",
    "openai",
}
# The application's arrows: driver -> definitions -> sensors -> jobs -> assets -> library; assets
# and resources meet only in definitions.
APPLICATION_ALLOWED: dict[str, set[str]] = {
    "assets": {"assets"},
    "resources": {"resources"},
    "jobs": {"jobs", "assets"},
    "sensors": {"sensors", "jobs", "assets"},
    "driver": {"driver", "definitions", "sensors", "jobs", "assets"},
}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path, *, top_only: bool = False) -> tuple[str, ...]:
    """Full names of all modules that `path` imports."""
    return tuple(_imports(path, tree_of(path), top_only))


def _imports(path: Path, tree: ast.Module, top_only: bool) -> Iterator[str]:
    for node in tree.body if top_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def library_files() -> list[Path]:
    """Without the application, to whose sources `rlhf_pipeline/application` links."""
    files = sorted(LIBRARY.rglob("*.py"))
    return [path for path in files if path.parent not in (LIBRARY, LIBRARY / "application")] + [
        LIBRARY / "client.py"
    ]


def place(path: Path) -> list[str]:
    """Room and module or folder in it."""
    return list(path.relative_to(LIBRARY).with_suffix("").parts)


def application_files() -> list[Path]:
    return [path for folder in APPLICATION for path in sorted((ROOT / folder).rglob("*.py"))]


def test_rooms_import_only_earlier_ones() -> None:
    unknown = {place(path)[0] for path in library_files()} - set(ALLOWED)
    assert not unknown, f"{sorted(unknown)} are new: say in this file what they may import"
    offenders = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in library_files()
        for name in imports(path)
        if name.startswith("rlhf_pipeline.") and not _may_import(place(path), name.split(".")[1:])
    ]
    assert offenders == []


def _may_import(importer: list[str], imported: list[str]) -> bool:
    room, target = importer[0], imported[0]
    if target == "__version__" or target in ALLOWED[room]:
        return True
    if target == room:
        order = INSIDE.get(room, [])
        inner, other = importer[1], imported[1] if len(imported) > 1 else ""
        if inner not in order or other not in order:
            return True
        return order.index(other) <= order.index(inner)
    excepted = EXCEPTIONS.get(".".join(importer[:2]), set())
    return any(".".join(imported).startswith(name) for name in excepted)


def test_application_is_reached_by_one_module() -> None:
    """Its commands start runs; `import_module` hides this one arrow up from the rules above."""
    finders = {
        path.relative_to(ROOT).as_posix()
        for path in library_files()
        if re.search(
            r"import_module\(\s*[rf]?\"rlhf_pipeline\.application", path.read_text("utf-8")
        )
    }
    assert finders == {"rlhf_pipeline/cli/application.py"}


def test_each_library_is_imported_by_its_owner_alone() -> None:
    offenders = [
        f"{path.relative_to(ROOT)} imports {name}, owned by {owners or 'the application'}"
        for path in library_files()
        for name in imports(path)
        if (owners := OWNERS.get(name.split(".")[0])) is not None
        and not path.relative_to(LIBRARY).as_posix().startswith(owners)
    ]
    assert offenders == []


def test_heavy_libraries_are_imported_inside_functions() -> None:
    """At module top they would make the definitions load in seconds instead of one."""
    offenders = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in library_files()
        for name in imports(path, top_only=True)
        if name.split(".")[0] in HEAVY
    ]
    assert offenders == []


def test_application_folders_import_one_way() -> None:
    own = {*APPLICATION, "definitions"}
    offenders = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in application_files()
        for name in imports(path)
        if name.split(".")[0] in own
        or (
            name.startswith("rlhf_pipeline.application.")
            and (folder := name.split(".")[2]) in own
            and folder not in APPLICATION_ALLOWED[path.relative_to(ROOT).parts[0]]
        )
    ]
    assert offenders == []


def test_dagster_folders_do_not_postpone_annotations() -> None:
    """It breaks annotated `context` and `dg.Config` parameters."""
    offenders = [
        path.relative_to(ROOT).as_posix()
        for path in application_files()
        if "__future__.annotations" in set(imports(path))
    ]
    assert offenders == []


def test_every_module_has_a_docstring() -> None:
    files = [*library_files(), *application_files()]
    offenders = [
        path.relative_to(ROOT).as_posix() for path in files if not ast.get_docstring(tree_of(path))
    ]
    assert offenders == []


def test_only_settings_read_the_environment() -> None:
    readers = {
        path.relative_to(ROOT).as_posix()
        for path in library_files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
    }
    # The commands hand an environment on to the processes they start and to the application.
    assert readers <= {
        "rlhf_pipeline/core/config.py",
        "rlhf_pipeline/cli/application.py",
        "rlhf_pipeline/cli/dev.py",
    }


def test_the_definitions_load_no_heavy_library_and_no_web_code() -> None:
    script = "import sys; import rlhf_pipeline.application.definitions; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {*loaded} & {*HEAVY, "alembic"}
    assert not [name for name in loaded if name.startswith("rlhf_pipeline.web.")]


def test_the_store_is_imported_without_pandas() -> None:
    script = "import sys; import rlhf_pipeline.store; print({'pandas', 'pyarrow'} & {*sys.modules})"
    loaded = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert loaded == "set()"


# methods of policies, models and backends
GENERATES = {"generate", "complete", "stream", "call", "generate_batch"}


def test_assets_generate_through_the_engine_alone() -> None:
    """A direct call stands in no ledger, is paid for again and knows no budget."""
    files = [
        *sorted((ROOT / "assets").rglob("*.py")),
        *sorted((LIBRARY / "improve" / "evaluation").rglob("*.py")),
    ]
    calls = [
        (path, node)
        for path in files
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
    ]
    direct = [
        f"{path.relative_to(ROOT)}:{node.lineno} calls .{node.func.attr}(); ask "
        "rlhf_pipeline.generate.completions with a ledger"
        for path, node in calls
        if isinstance(node.func, ast.Attribute) and node.func.attr in GENERATES
    ]
    without_ledger = [
        f"{path.relative_to(ROOT)}:{node.lineno} names no ledger"
        for path, node in calls
        if getattr(node.func, "id", "") in {"BackendTextGenerator", "evaluate", "complete_requests"}
        and not any(keyword.arg == "ledger" for keyword in node.keywords)
    ]
    assert direct + without_ledger == []


def test_no_run_sends_alerts() -> None:
    """A dead receiver costs a sensor, `rlhf loop` or the web app seconds, and a run nothing."""
    runs = [
        path for folder in ("assets", "jobs", "resources") for path in (ROOT / folder).rglob("*.py")
    ]
    offenders = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in runs
        for name in imports(path)
        if name.startswith("rlhf_pipeline.watch.alert")
    ]
    assert offenders == []


def test_only_sensors_loop_and_web_app_send_messages() -> None:
    """A dead receiver may cost a sensor's tick, `rlhf loop` or the web app a few seconds; a run
    nothing.
    """
    files = [*application_files(), *library_files()]
    senders = {
        path.relative_to(ROOT).parts[:3][-1] if room == "rlhf_pipeline" else room
        for path in files
        if (room := path.relative_to(ROOT).parts[0])
        and any(
            name.startswith(
                (
                    "rlhf_pipeline.watch.alerts.delivery",
                    "rlhf_pipeline.watch.alerts.rounds.send_messages",
                )
            )
            for name in imports(path)
        )
    }
    assert senders <= {"sensors", "driver", "web", "alerts"}


def test_commands_print_through_one_place() -> None:
    """`cli.tables` escapes control characters of stored text; who prints past it does not."""
    past_it = re.compile(
        r"typer\.s?echo\(|(?<![\w.])print\(|sys\.std(?:out|err)\.write\(|\bConsole\(\)"
        r"|add_row\((?!\s*plain_text\()(?!\s*f\")"
    )
    files = [path for path in sorted((LIBRARY / "cli").glob("*.py")) if path.name != "tables.py"]
    calls = []
    for path in files:
        text = path.read_text(encoding="utf-8")
        calls += [
            f"{path.name}:{text[: match.start()].count(chr(10)) + 1}: {match.group()}"
            for match in past_it.finditer(text)
        ]
    assert not calls, f"print by tables.echo or tables.show: {calls}"


def test_no_line_of_a_page_style_or_script_exceeds_100_columns() -> None:
    """As `ruff check` asks of Python."""
    files = [
        path
        for path in sorted(LIBRARY.rglob("*"))
        if path.suffix in {".html", ".css", ".js"} and "vendor" not in path.parts
    ]
    assert {path.suffix for path in files} == {".html", ".css", ".js"}
    wide = [
        f"{path.relative_to(ROOT)}:{number} has {len(line)} columns"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 100
    ]
    assert wide == []


def test_no_asset_of_group_learn_reads_votes_from_the_store() -> None:
    """They take them from the graph, which then tells what a model was made of."""
    refused = ("load_earlier_votes", "errors_after")
    learn = [path for path in sorted((ROOT / "assets").glob("*.py")) if _is_of_learn(path)]
    assert len(learn) == 4
    reads = [
        f"{path.name}:{node.lineno}"
        for path in learn
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "votes"
        and node.attr != "max_seq"
    ]
    reads += [
        f"{path.name}: {name}"
        for path in learn
        for name in refused
        if name in path.read_text(encoding="utf-8")
    ]
    assert not reads


def _is_of_learn(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    return re.search(rf'_asset\(\s*"{path.stem}",\s*"learn"', text) is not None


# What one vote may look like. Arrays that a single computation makes of a frame are not listed.
SHAPES_OF_A_VOTE: dict[str, set[str]] = {
    "records": {"NewVote", "Vote", "ListedVote"},
    "table": {"schema.votes"},  # `VoteRow`: its row as a dict
    "frames": {"frames.VOTES", "frames.EXPORTED_VOTES", "frames.REFLECTIONS"},
    "files": {"preference.VOTE_ROWS"},
    "API": {
        *("VoteFields", "VoteInBatch", "VoteOptions", "VoteBody"),
        *("VoteReceipt", "OwnVote", "ProbedPair"),
    },
}


def test_a_vote_has_six_shapes() -> None:
    listed = set().union(*SHAPES_OF_A_VOTE.values())
    assert len(SHAPES_OF_A_VOTE) <= 6
    assert _vote_classes() | _vote_tables() == listed


def _vote_classes() -> set[str]:
    """Classes with five fields of a vote, choice or strength among them, and their subclasses."""
    fields = {*Vote.model_fields, *frames.VOTES.columns}
    shapes: set[str] = set()
    for node in (node for path in library_files() for node in ast.walk(tree_of(path))):
        if isinstance(node, ast.ClassDef):
            own = {
                line.target.id
                for line in node.body
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
            }
            has_vote = own & {"choice", "strength"} and len(own & fields) >= 5
            if has_vote or any(getattr(base, "id", "") in shapes for base in node.bases):
                shapes.add(node.name)
    return shapes


def _vote_tables() -> set[str]:
    tables = {
        id(table): f"{module.__name__.split('.')[-1]}.{name}"
        for module in (preference, frames, schema)  # the owner's name last
        for name, table in vars(module).items()
        if isinstance(table, FrameSchema | Table)
        and {"choice", "annotator_id", "comparison_id"} <= set(table.columns.keys())
    }
    return set(tables.values())
