"""Writes the reference pages of the site from the code: nothing in them is written by hand.

    python docs/reference.py FOLDER    # or `make docs`, which adds them to the site

Each page is a function of the definitions that it describes; `PAGES` names them.
"""

import inspect
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

from rlhf_pipeline.cli import COMMANDS, load_command  # noqa: E402
from rlhf_pipeline.core.config import ENV_PREFIX, Settings  # noqa: E402
from rlhf_pipeline.improve.loop_settings import PARTS, LoopSettings  # noqa: E402
from rlhf_pipeline.web.effective_settings import list_parameters  # noqa: E402


def first_line(text: str | None) -> str:
    return " ".join(inspect.cleandoc(text or "").split("\n\n")[0].split())


def cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    names = list(columns)
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(map(cell, row)) + " |" for row in rows]
    return "\n".join(lines)


def code(text: object) -> str:
    return f"`{text}`" if text not in ("", None) else ""


def default_of(value: object) -> str:
    if value is None or isinstance(value, BaseModel):
        return ""
    return code(str(value).lower() if isinstance(value, bool) else value)


def settings() -> str:
    """Settings of the environment and of `rlhf.yaml`, then the loop settings by part."""
    rows = [
        (code(f"{ENV_PREFIX}{name.upper()}"), default_of(field.default), field.description or "")
        for name, field in Settings.model_fields.items()
    ]
    text = [
        "# Settings",
        "Environment variables, or lines of `rlhf.yaml` without the prefix (`home: /srv/rlhf`). "
        "[How settings are found](../guides/settings.md).",
        table(("environment", "default", "meaning"), rows),
        "## Loop settings",
        "The section `loop:` of `rlhf.yaml`, one part per stage. The page *Settings* shows "
        "the values in use.",
    ]
    loop = LoopSettings({})
    for part, params in PARTS.items():
        text += [
            f"### {part}",
            first_line(params.__doc__),
            table(
                ("parameter", "default", "meaning"),
                ((code(p.name), code(p.default), p.meaning) for p in list_parameters(loop, part)),
            ),
        ]
    return "\n\n".join(text)


def commands() -> str:
    """Every command with its arguments and options."""
    text = ["# Commands", "`rlhf COMMAND --help` prints the same."]
    for name in COMMANDS:
        for path, command in _leaves(f"rlhf {name}", load_command(name)):
            text += [f"## {path}", first_line(command.help)]
            rows = [
                (
                    code(", ".join(p.opts) if p.param_type_name == "option" else p.name),
                    default_of(None if p.default is None or callable(p.default) else p.default),
                    first_line(getattr(p, "help", "") or ""),
                )
                for p in command.params
                if not getattr(p, "hidden", False)
            ]
            if rows:
                text.append(table(("argument or option", "default", "meaning"), rows))
    return "\n\n".join(text)


def _leaves(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for name, inner in command.commands.items():
            yield from _leaves(f"{path} {name}", inner)
    else:
        yield path, command


def api() -> str:
    """Routes of `/api/v1` by permission, and the permissions of each role."""
    from rlhf_pipeline.web.permissions import ROLE_PERMISSIONS, Permission

    rows = []
    for path, methods in openapi()["paths"].items():
        for method, operation in methods.items():
            names = [p["name"] for p in operation.get("parameters", ()) if p["in"] == "query"]
            needed = operation.get("x-permission")
            rows.append(
                (
                    code(f"{method.upper()} {path.removeprefix('/api/v1/')}"),
                    first_line(operation.get("description") or operation.get("summary")),
                    ", ".join(map(code, names)),
                    code(needed) if needed else "none" if "x-public" in operation else "a login",
                )
            )
    roles = [
        (
            role.value,
            "all"
            if allowed == frozenset(Permission)
            else " ".join(code(each.value) for each in Permission if each in allowed),
        )
        for role, allowed in ROLE_PERMISSIONS.items()
    ]
    return "\n\n".join(
        [
            "# API",
            "Below `/api/v1`; `/api/v1/openapi.json` has the fields of every body and answer. "
            "[How to call it](../guides/api.md).",
            "## Routes",
            table(("route", "what it does", "query", "permission"), rows),
            "## Roles",
            "A user has any of these roles; a token may carry fewer permissions than its owner.",
            table(("role", "permissions"), roles),
        ]
    )


def openapi() -> dict[str, Any]:
    """The OpenAPI document of the web app."""
    from fastapi.routing import APIRoute

    from rlhf_pipeline.store import Store
    from rlhf_pipeline.web.app import create_app, describe_api

    with (
        tempfile.TemporaryDirectory() as home,
        Store.open(f"sqlite:///{home}/store.db") as store,
    ):
        store.migrate()
        app = create_app(Settings(home=Path(home)), store)
        routes = [r for r in app.routes if isinstance(r, APIRoute) and r.include_in_schema]
        return describe_api(app, [r for r in routes if r.path.startswith("/api/")])


def stages() -> str:
    """Assets, jobs, schedules and sensors of the Dagster application."""
    from rlhf_pipeline.application.definitions import definitions_for

    simulated = Settings.read(folder=ROOT).model_copy(update={"annotators": "simulated"})
    application = definitions_for(simulated)
    graph = application.resolve_asset_graph()
    assets = [
        (code(node.key.to_user_string()), node.group_name, first_line(node.description))
        for key in sorted(graph.get_all_asset_keys(), key=lambda k: k.to_user_string())
        for node in [graph.get(key)]
    ]
    text = [
        "# Stages, jobs and sensors",
        "## Assets",
        table(("asset", "group", "what it makes"), assets),
    ]
    for kind in ("jobs", "schedules", "sensors"):
        things = list(getattr(application, kind) or ())
        described = [(code(t.name), first_line(getattr(t, "description", ""))) for t in things]
        text += [f"## {kind.capitalize()}", table(("name", "what it does"), described)]
    return "\n\n".join(text)


def metrics() -> str:
    """Metrics, rules of alerts and the states that rules may read."""
    from rlhf_pipeline.core.metric_catalogue import METRICS
    from rlhf_pipeline.watch.alerts.rules import RULES, STATES

    return "\n\n".join(
        [
            "# Metrics and alert rules",
            "[How metrics and alerts work](../guides/alerts.md).",
            "## Metrics",
            table(
                ("metric", "unit", "labels", "meaning"),
                (
                    (code(m.name), m.unit, ", ".join(m.labels), m.description)
                    for m in METRICS.values()
                ),
            ),
            "## Rules",
            table(
                ("rule", "reads", "fires when", "for minutes", "within days", "severity"),
                (
                    (
                        code(r.name),
                        code(r.reads),
                        f"{r.comparison} {r.threshold:g}",
                        f"{r.for_minutes:g}",
                        r.within_days,
                        r.severity,
                    )
                    for r in RULES.values()
                ),
            ),
            "## States",
            "Rules read metrics and these states.",
            table(("state", "value"), ((code(name), text) for name, text in STATES.items())),
        ]
    )


def calls() -> str:
    """Outcomes of a call to a provider."""
    from rlhf_pipeline.generate.completions.faults import KINDS

    rows = (
        (code(name), k.outcome, k.billing, "yes" if k.closes else "", k.means)
        for name, k in KINDS.items()
    )
    return "\n\n".join(
        [
            "# Outcomes of a provider call",
            "As in the ledger's column `kind`, in `kinds` of a run and, as `failed_<kind>`, in the "
            "metadata of `completions`. `retryable` ones are called again; a kind that closes the "
            "provider fails its remaining items without a call.",
            table(("kind", "outcome", "billed", "closes the provider", "meaning"), rows),
        ]
    )


def members() -> dict[str, Mapping[str, Any]]:
    """The members of every extension point."""
    from rlhf_pipeline.feedback.datasets.formats import FORMATS
    from rlhf_pipeline.generate.completions import BACKENDS
    from rlhf_pipeline.generate.prompts import GENERATORS
    from rlhf_pipeline.improve.retraining.strategies import STRATEGIES
    from rlhf_pipeline.learn.calibration import CALIBRATORS
    from rlhf_pipeline.learn.reward_model import REWARD_MODELS
    from rlhf_pipeline.watch.drift import DETECTORS
    from rlhf_pipeline.web.sections import SECTIONS

    return {
        "Prompt generators": GENERATORS,
        "Completion backends": BACKENDS,
        "Reward models": REWARD_MODELS,
        "Calibrators": CALIBRATORS,
        "Drift detectors": DETECTORS,
        "Training strategies": STRATEGIES,
        "File formats": FORMATS,
        "Sections of the web app": SECTIONS,
    }


def extensions() -> str:
    """The members of every extension point, with their parameters."""
    text = [
        "# Members",
        "What is built in or installed, by extension point. "
        "[How to add one](../guides/extending.md).",
    ]
    for kind, mapping in members().items():
        rows = []
        for name, member in mapping.items():
            params = getattr(getattr(member, "Params", None), "model_fields", {})
            rows.append((code(name), _about(member), ", ".join(map(code, params))))
        text += [f"## {kind}", table(("name", "what it is", "parameters"), rows)]
    return "\n\n".join(text)


def _about(member: Any) -> str:
    """Its title or address; of a class its own docstring, else the library's class behind it."""
    if isinstance(member, type):
        return first_line(vars(member).get("__doc__")) or f"Frouros' {member.__name__}"
    return str(getattr(member, "title", None) or getattr(member, "path", None) or "")


def frames() -> str:
    """Columns of every frame that crosses a stage, and of the export format."""
    from rlhf_pipeline.core.frames import SCHEMAS
    from rlhf_pipeline.feedback.datasets.preference import KINDS

    text = ["# Frames", "One Parquet file a stage and day. [Where they lie](../guides/home.md)."]
    exports = {f"preference-v1/{name}": schema for name, schema in KINDS.items()}
    for name, schema in (SCHEMAS | exports).items():
        rows = [
            (code(column), c.kind, "yes" if c.nullable else "", _meaning(c))
            for column, c in schema.columns.items()
        ]
        text += [f"## {name}", f"Key: {', '.join(map(code, schema.key))}." if schema.key else ""]
        text.append(table(("column", "kind", "may be missing", "meaning"), rows))
    return "\n\n".join(text)


def _meaning(column: Any) -> str:
    values = f" ({', '.join(map(code, column.values))})" if column.values else ""
    return f"{column.description}{values}"


def python() -> str:
    """What the library offers to Python programs; mkdocstrings fills it in."""
    modules = (
        "rlhf_pipeline.client.Client",
        "rlhf_pipeline.simulation.testing",
        "rlhf_pipeline.watch.drift.base",
        "rlhf_pipeline.watch.drift.causes.find_causes",
        "rlhf_pipeline.generate.completions.base",
        "rlhf_pipeline.generate.prompts.base",
        "rlhf_pipeline.learn.calibration.base",
        "rlhf_pipeline.learn.reward_model.base",
        "rlhf_pipeline.improve.retraining.strategies.base",
        "rlhf_pipeline.feedback.datasets.formats.base",
        "rlhf_pipeline.core.plugins",
        "rlhf_pipeline.core.errors",
    )
    return "\n\n".join(["# Python", *(f"::: {name}" for name in modules)])


PAGES: dict[str, Callable[[], str]] = {
    "settings": settings,
    "commands": commands,
    "api": api,
    "stages": stages,
    "metrics": metrics,
    "calls": calls,
    "members": extensions,
    "frames": frames,
    "python": python,
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, write in PAGES.items():
        (folder / f"{name}.md").write_text(write() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
