"""Delivers the result of a stage: runs its checks, logs it to MLflow, adds metadata for the UI."""

import base64
import dataclasses
import functools
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import date
from typing import Any, cast

import dagster as dg
import pandas as pd

# the public API has no names for these
from dagster._core.definitions.decorators.op_decorator import DecoratedOpFunction
from dagster._core.definitions.definition_config_schema import (
    convert_user_facing_definition_config_schema,
)
from pydantic import BaseModel, Field, create_model
from upath import UPath

from rlhf_pipeline.application.assets.partitions import DAYS
from rlhf_pipeline.core.errors import ExpectationFailed, FrameError, translate_memory_errors
from rlhf_pipeline.core.expectations import (
    DataExpectation,
    ExpectationOutcome,
    build_suite,
    validate,
)
from rlhf_pipeline.core.frames import SCHEMAS, FrameSchema, frame_hash
from rlhf_pipeline.core.metric_catalogue import metrics_of_stage
from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.core.protocols import Progress
from rlhf_pipeline.core.records import Record, content_hash
from rlhf_pipeline.improve.retraining.figures import parse_figures
from rlhf_pipeline.registry import Registry, Run, missing_ceilings
from rlhf_pipeline.watch.telemetry.current_step import in_step
from rlhf_pipeline.watch.telemetry.tracing import flush_spans

OWNERS = ["team:rlhf"]
PREVIEW_ROWS = 15
# fields that differ between runs with the same inputs
TIME_FIELDS = {"created_at", "fitted_at", "evaluated_at", "decided_at", "calibrator_version"}
PREVIEW_WIDTH = 80
SHOWN_NUMBERS = 6
NUMBERS = "numbers"  # all of them, as one JSON
NO_CHECKS: Mapping[str, str] = {}
HAS_ROWS = "has_rows"
SCHEMA_CHECK = "columns_and_keys"  # of every frame; a failure stops the run
# MLflow's own tags; its public API has no names for them
PARENT_RUN_TAG, NOTE_TAG = "mlflow.parentRunId", "mlflow.note.content"


AssetDecorator = Callable[[Callable[..., Any]], dg.AssetsDefinition]


def unpartitioned_asset(
    name: str,
    group: str,
    *kinds: str,
    checks: Mapping[str, str] = NO_CHECKS,
    days: dg.PartitionsDefinition[str] | None = None,
    deps: Sequence[dg.AssetSpec | str] = (),
    pool: str | None = None,
) -> AssetDecorator:
    """`@dg.asset` for a stage over all days. `checks` are those that only warn, with their
    descriptions.
    """
    schema, specs = SCHEMAS.get(name), []
    if schema is not None:
        checks = {HAS_ROWS: "The frame has rows."} | dict(checks)
        specs = [
            dg.AssetCheckSpec(
                SCHEMA_CHECK,
                asset=name,
                blocking=True,
                description="Columns, types, keys, allowed values and ranges; a failure stops the "
                "run.",
                partitions_def=days,
            )
        ]
    specs += [
        dg.AssetCheckSpec(check, asset=name, description=text, partitions_def=days)
        for check, text in checks.items()
    ]
    decorator = dg.asset(
        name=name,
        group_name=group,
        owners=OWNERS,
        tags={"cadence": "daily" if days else "on_demand", "part": group},
        kinds={"python", *kinds},
        code_version="1",
        check_specs=specs,
        metadata={"dagster/column_schema": column_schema(schema)} if schema else {},
        partitions_def=days,
        backfill_policy=dg.BackfillPolicy.single_run() if days else None,
        deps=deps,
        pool=pool,
    )

    def decorate(stage: Callable[..., Any]) -> dg.AssetsDefinition:
        return decorator(_record_failure(stage))

    return decorate


# For a stage with one frame per day; a range of days is one run.
daily_asset = functools.partial(unpartitioned_asset, days=DAYS)


def _record_failure(stage: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    """The stage, whose error also makes a failed MLflow run, even before the stage opened one: that
    is where `rlhf status` looks. A FrameError raised inside fails the check of the stage's frame.
    Spans of calls and log lines made inside name the run.
    """
    name = stage.__name__

    @functools.wraps(stage)
    def recorded_stage(context: dg.AssetExecutionContext, **inputs: Any) -> Iterator[Any]:
        try:
            with in_step(context.run_id, name), translate_memory_errors(f"Asset {name}"):
                yield from stage(context, **inputs)
        except Exception as cause:
            if isinstance(cause, FrameError) and name in SCHEMAS:
                yield dg.AssetCheckResult(
                    check_name=SCHEMA_CHECK,
                    passed=False,
                    severity=dg.AssetCheckSeverity.ERROR,
                    description=str(cause),
                )
            registry = inputs["registry"] if "registry" in inputs else inputs["champions"].registry
            # whatever happens here, the error of the stage is the one to report
            with suppress(Exception), open_tracked_run(context, registry):
                raise
            raise
        finally:
            if multiprocessing.parent_process() is not None:
                flush_spans()

    return recorded_stage


def config_class(stage: dg.AssetsDefinition) -> type[dg.Config] | None:
    """The class of a stage's parameters; None for a stage without any."""
    function = cast(DecoratedOpFunction, stage.op.compute_fn).decorated_fn
    annotation = function.__annotations__.get("config")
    return (
        annotation if isinstance(annotation, type) and issubclass(annotation, dg.Config) else None
    )


def with_defaults(stage: dg.AssetsDefinition, values: Mapping[str, Any]) -> dg.AssetsDefinition:
    """The stage with other defaults of its parameters, in the launchpad and in every run."""
    if not values:
        return stage
    fields_type: Any = stage.op.config_schema.as_field().config_type
    schema = convert_user_facing_definition_config_schema(
        _change_defaults(fields_type.fields, values)
    )
    op = stage.op.with_replaced_properties(name=stage.op.name, config_schema=schema)
    return dg.AssetsDefinition.dagster_internal_init(
        **{**stage.get_attributes_dict(), "node_def": op}
    )


def _change_defaults(fields: Mapping[str, dg.Field], values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with these defaults, and so those of sections."""
    changed: dict[str, Any] = dict(fields)
    for name, value in values.items():
        kind: Any = fields[name].config_type
        about: dict[str, Any] = {"is_required": False, "description": fields[name].description}
        if isinstance(kind, dg.Shape):
            changed[name] = dg.Field(_change_defaults(kind.fields, value), **about)
        else:
            changed[name] = dg.Field(kind, default_value=value, **about)
    return changed


def column_schema(schema: FrameSchema) -> dg.TableSchema:
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name,
                type=c.kind,
                description=c.description,
                constraints=dg.TableColumnConstraints(nullable=c.nullable),
            )
            for name, c in schema.columns.items()
        ]
    )


@dataclass(frozen=True)
class StageReport:
    """What people see of a materialisation, in Dagster and in its MLflow run.

    The asset page shows the metrics in `shown` as numbers, or the first `SHOWN_NUMBERS`; all are in
    its JSON `numbers`. `figures` are PNG images, `texts` files of the MLflow run, `pages` files of
    the home. `points` are all metric points of the stage for its days; the stage asks for the store
    as a resource.
    """

    headline: str
    metrics: Mapping[str, float | int | None]
    shown: Sequence[str] = ()
    rows: pd.DataFrame | None = None
    figures: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pages: Mapping[UPath, str] = dataclasses.field(default_factory=dict)
    points: Sequence[MetricPoint] | None = None


def deliver(
    context: dg.AssetExecutionContext,
    registry: Registry,
    value: pd.DataFrame | Record,
    report: StageReport,
    *,
    checks: Sequence[ExpectationOutcome] = (),
    usual: Sequence[DataExpectation] = (),
    write: Callable[[Mapping[UPath, bytes]], None] | None = None,
    run: Run | None = None,
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult[Any]]:
    """Yield the check results and the materialisation. Raises ExpectationFailed for a failed
    blocking check before anything is written, so the previous artefact stays.

    `write` stores the report's pages at their paths.
    """
    name = context.asset_key.to_user_string()
    outcomes = [*checks, *_validate(name, value, usual)]
    yield from _check_results([key.name for key in context.selected_asset_check_keys], outcomes)
    failed = [o for o in outcomes if o.expectation.blocking and not o.passed]
    if failed:
        raise ExpectationFailed(
            f"{name}: {'; '.join(o.message for o in failed)} Nothing was written. Fix the cause "
            "and run again."
        )
    numbers = {key: float(n) for key, n in report.metrics.items() if n is not None}
    data_hash = value_hash(value)
    with open_tracked_run(context, registry) if run is None else nullcontext(run) as run:
        run.set_tags({"data_hash": data_hash})
        _log_to_run(run, numbers, report.figures, report.texts)
    if report.pages and write:
        write({path: page.encode() for path, page in report.pages.items()})
    if report.points is not None:
        _store_points(context, name, report.points)
    yield dg.MaterializeResult(
        value=value,
        metadata=_build_metadata(value, numbers, report)
        | ({"report": dg.MetadataValue.path(str(list(report.pages)[-1]))} if report.pages else {})
        | {"data_hash": data_hash, "mlflow_run": dg.MetadataValue.url(run.url)},
        data_version=None if _days_of(context) else dg.DataVersion(data_hash[:20]),
    )


def _store_points(
    context: dg.AssetExecutionContext, stage: str, points: Sequence[MetricPoint]
) -> None:
    """A day that is materialised again loses its earlier points."""
    stored = context.resources.store.metric_points
    if days := _days_of(context):
        stored.replace(metrics_of_stage(stage), [date.fromisoformat(day) for day in days], points)
    else:
        stored.put(points)


def _days_of(context: dg.AssetExecutionContext) -> list[str]:
    """Empty for a stage over all days."""
    is_daily = context.has_partition_key or context.has_partition_key_range
    return list(context.partition_keys) if is_daily else []


def _flatten_config(config: Mapping[str, Any] | None, prefix: str = "") -> dict[str, Any]:
    """The parameters of a run by name, those of a section as `section.name`."""
    flat: dict[str, Any] = {}
    for name, value in (config or {}).items():
        is_section = isinstance(value, Mapping) and value
        flat |= _flatten_config(value, f"{prefix}{name}.") if is_section else {prefix + name: value}
    return flat


@contextmanager
def open_tracked_run(context: dg.AssetExecutionContext, registry: Registry) -> Iterator[Run]:
    """The MLflow run of this materialisation, with the stage's parameters; a retry re-opens it."""
    name = context.asset_key.to_user_string()
    days = _days_of(context)
    partition = "-" if not days else days[0] if len(days) == 1 else f"{days[0]}...{days[-1]}"
    tags = {
        "dagster.run_id": context.run_id,
        "dagster.asset": name,
        "dagster.partition": partition,
        "dagster.job": context.job_name,
    }
    run_key = f"{context.run_id}:{name}:{partition}"
    if days:
        parent = registry.parent_run(f"day {partition}", f"day:{partition}")
    else:
        parent = registry.parent_run(f"{context.job_name} {context.run_id[:8]}", context.run_id)
    tags |= {PARENT_RUN_TAG: parent, NOTE_TAG: _link_back(context, registry)}
    with registry.run(f"{name} {partition}".removesuffix(" -"), tags, run_key=run_key) as run:
        run.log_params(_flatten_config(context.op_execution_context.op_config))
        yield run


class LossLogger:
    """Also logs the figures that a training reports, such as its loss, to MLflow while it runs.

    Of an ensemble it logs the first member: the others count their steps anew.
    """

    def __init__(self, run: Run, progress: Progress) -> None:
        self.last_step = 0
        self._run = run
        self._progress = progress

    def __call__(self, done: int, total: int, note: str = "") -> None:
        figures = parse_figures(note)
        if "loss" in figures and done > self.last_step:
            self.last_step = done
            figures |= {"step": done, "steps": total}
            self._run.log_metrics({f"training_{name}": n for name, n in figures.items()}, done)
            self._run.flush()
        self._progress(done, total, note)


def log_frame(run: Run, stage: str, frame: pd.DataFrame, context: dg.AssetExecutionContext) -> None:
    """Record a frame that a model learnt from as an input of its MLflow run."""
    seqs = {
        f"{name}_seq": int(getattr(frame[column], name)())
        for column in ("seq", "max_seq")
        if column in frame and len(frame)
        for name in ("min", "max")
    }
    run.log_dataset(
        stage,
        digest=frame_hash(frame),
        source=f"dagster asset {stage}, read by run {context.run_id}",
        n_rows=len(frame),
        **seqs,
    )


def _link_back(context: dg.AssetExecutionContext, registry: Registry) -> str:
    """The description of an MLflow run: links to the run and the asset in Dagster."""
    name = context.asset_key.to_user_string()
    return (
        f"[Dagster run {context.run_id[:8]}]({registry.dagster_ui}/runs/{context.run_id}) · "
        f"[asset {name}]({registry.dagster_ui}/assets/{name})"
    )


def value_hash(value: pd.DataFrame | Record) -> str:
    """Hash of a frame, or of a record without its times, so that equal inputs give equal data
    versions.
    """
    return (
        frame_hash(value)
        if isinstance(value, pd.DataFrame)
        else content_hash(_drop_times(value.model_dump(mode="json")))
    )


def _drop_times(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _drop_times(item) for key, item in content.items() if key not in TIME_FIELDS}
    return content


def _validate(
    name: str, value: pd.DataFrame | Record, usual: Sequence[DataExpectation]
) -> list[ExpectationOutcome]:
    """Outcomes of the schema's expectations and of `usual`; for an empty frame only a warning that
    it is empty.
    """
    if isinstance(value, Record):
        return []
    not_empty = expect_usually(HAS_ROWS, "expect_table_row_count_to_be_between", min_value=1)
    return validate(
        value, build_suite(SCHEMAS[name], extra=[not_empty, *([] if value.empty else usual)]), name
    )


def make_rule(check: str, passed: bool, message: str) -> ExpectationOutcome:
    """An outcome of our own check; `message` describes the failure."""
    return ExpectationOutcome(
        expectation=DataExpectation(type=check, blocking=False, check=check),
        passed=passed,
        message="passed" if passed else message,
    )


def expect_usually(check: str, kind: str, **kwargs: Any) -> DataExpectation:
    """A non-blocking Great Expectations expectation of a check of the stage."""
    return DataExpectation(type=kind, kwargs=kwargs, check=check)


def as_config(params: type[BaseModel]) -> Any:
    """`params` as a Dagster config class, and so the sections in it."""
    sections: dict[str, Any] = {}
    for name, field in params.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            section = as_config(field.annotation)
            sections[name] = (
                section,
                Field(default_factory=section, description=field.description),
            )
    return create_model(
        params.__name__, __base__=(params, dg.Config), __doc__=params.__doc__, **sections
    )


def _check_results(
    checks: Sequence[str], outcomes: Sequence[ExpectationOutcome]
) -> Iterator[dg.AssetCheckResult]:
    """One result per check of the stage. Without rows there is nothing to expect of them."""
    for check in checks:
        mine = [o for o in outcomes if (o.expectation.check or SCHEMA_CHECK) == check]
        failed = [o for o in mine if not o.passed]
        yield dg.AssetCheckResult(
            check_name=check,
            passed=not failed,
            severity=dg.AssetCheckSeverity.ERROR
            if check == SCHEMA_CHECK
            else dg.AssetCheckSeverity.WARN,
            description="; ".join(o.message for o in failed) or _describe_success(mine),
            metadata={"expectations": len(mine), "failed": [o.message for o in failed]},
        )


def _describe_success(outcomes: Sequence[ExpectationOutcome]) -> str:
    if not outcomes:
        return "no rows, so nothing to check"
    return outcomes[0].message if len(outcomes) == 1 else f"{len(outcomes)} expectations met"


def _log_to_run(
    run: Run, numbers: Mapping[str, float], figures: Mapping[str, bytes], texts: Mapping[str, str]
) -> None:
    run.log_metrics(dict(numbers))
    for name, png in figures.items():
        run.log_file(png, f"{name}.png")
    for path, text in texts.items():
        run.log_file(text.encode(), path)


def _build_metadata(
    value: pd.DataFrame | Record, numbers: Mapping[str, float], report: StageReport
) -> dict[str, Any]:
    """In the order of the asset page: headline, pictures, a few numbers, the rest."""
    metadata: dict[str, Any] = {"headline": report.headline}
    for name, png in report.figures.items():
        metadata[name] = dg.MetadataValue.md(
            f"![{name}](data:image/png;base64,{base64.b64encode(png).decode()})"
        )
    names = [name for name in report.shown or numbers if name in numbers]
    # six digits: what follows is noise on the page, and `numbers` has it
    metadata |= {name: float(f"{numbers[name]:.6g}") for name in names[:SHOWN_NUMBERS]}
    metadata[NUMBERS] = dg.MetadataValue.json(dict(numbers))
    preview = value if isinstance(value, pd.DataFrame) and report.rows is None else report.rows
    if preview is not None:
        metadata["preview"] = dg.MetadataValue.md(markdown_table(preview))
    if isinstance(value, pd.DataFrame):
        metadata["dagster/row_count"] = len(value)
    if isinstance(value, Record):
        metadata["record"] = dg.MetadataValue.json(value.model_dump(mode="json"))
    for ceiling in missing_ceilings(numbers):
        metadata[ceiling] = "unknown: no overlapping votes and no repeated judgements"
    return {key: item for key, item in metadata.items() if item is not None}


def markdown_table(frame: pd.DataFrame, rows: int = PREVIEW_ROWS) -> str:
    """The first rows as Markdown; cells are truncated, pipes and line breaks escaped."""
    if frame.empty:
        return "_no rows_"
    cut = frame.head(rows).map(
        lambda cell: (
            ""
            if pd.isna(cell)
            else str(cell).replace("\n", "⏎ ").replace("|", "\\|")[:PREVIEW_WIDTH]
        )
    )
    return str(cut.to_markdown(index=False))
