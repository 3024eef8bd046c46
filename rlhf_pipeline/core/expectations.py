"""Checks frames with Great Expectations; suites are plain data.

The only file that imports Great Expectations. A suite is derived from a frame schema, so the rules
of a column are written once. Stages add expectations about distributions, which warn instead of
blocking.
"""

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.config import silence_telemetry
from rlhf_pipeline.core.errors import ConfigurationError, ExpectationFailed
from rlhf_pipeline.core.frames import Column, FrameSchema
from rlhf_pipeline.core.records import Record

SAMPLE = 5
SHOWN = 80  # characters of one offending value
# Great Expectations keeps the current context in a global.
_CONTEXT = threading.Lock()


class DataExpectation(Record):
    """One expectation, by its name in Great Expectations. `blocking` ones stop the run, others
    warn. Expectations of one `check` are reported together.
    """

    type: str = Field(description="such as expect_column_values_to_be_between")
    kwargs: dict[str, Any] = {}
    blocking: bool = False
    check: str = ""

    @property
    def subject(self) -> str:
        """The column or columns it checks, or `table`."""
        columns = self.kwargs.get("column_list") or [self.kwargs.get("column", "table")]
        return ", ".join(columns)


class ExpectationOutcome(Record):
    """Result of one expectation; `sample` holds up to five offending values."""

    expectation: DataExpectation
    passed: bool
    n_unexpected: int | None = None
    sample: tuple[str, ...] = ()
    message: str


def build_suite(
    schema: FrameSchema, extra: Sequence[DataExpectation] = ()
) -> tuple[DataExpectation, ...]:
    """Blocking expectations for every rule of `schema`, followed by `extra`.

    >>> from rlhf_pipeline.core.frames import PROMPTS
    >>> [e.type for e in build_suite(PROMPTS) if e.subject == "difficulty"]
    ['expect_column_values_to_not_be_null', 'expect_column_values_to_be_in_set']
    """
    columns = {"column_set": list(schema.columns), "exact_match": True}
    suite = [
        DataExpectation(type="expect_table_columns_to_match_set", kwargs=columns, blocking=True)
    ]
    for name, column in schema.columns.items():
        suite += _column_expectations(name, column)
    if len(schema.key) == 1:
        suite.append(
            DataExpectation(
                type="expect_column_values_to_be_unique",
                kwargs={"column": schema.key[0]},
                blocking=True,
            )
        )
    elif schema.key:
        kwargs = {"column_list": list(schema.key), "ignore_row_if": "never"}
        suite.append(
            DataExpectation(
                type="expect_compound_columns_to_be_unique", kwargs=kwargs, blocking=True
            )
        )
    return (*suite, *extra)


def validate(
    frame: pd.DataFrame, suite: Sequence[DataExpectation], name: str
) -> list[ExpectationOutcome]:
    """One outcome per expectation, in the order of `suite`. Messages call the frame `name`.

    Importing Great Expectations takes seconds once per process; each expectation then takes about
    10 ms. Raises ConfigurationError for an unknown expectation or invalid arguments.
    """
    silence_telemetry()
    import great_expectations as gx

    # it sets INFO itself and logs every temporary folder
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    expectations = [_domain_object(index, expectation) for index, expectation in enumerate(suite)]
    with _CONTEXT:
        # names within one context must be unique: a new one each time
        context = gx.get_context(mode="ephemeral")
        context.variables.progress_bars = {"globally": False, "metric_calculations": False}
        asset = context.data_sources.add_pandas("memory").add_dataframe_asset(name)
        batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": frame})

        def judge(chosen: Sequence[Any], form: Any) -> dict[int, Any]:
            """Results by index: Great Expectations returns them in its own order."""
            part = gx.ExpectationSuite(name=name, expectations=chosen)
            results = batch.validate(part, result_format=form).results
            return {int(r.expectation_config.meta["index"]): r for r in results}

        # Whether they hold takes two thirds of the time of the values that violate them, which only
        # failed ones need.
        by_index = judge(expectations, "BOOLEAN_ONLY")
        if failed := [expectations[i] for i, result in by_index.items() if not result.success]:
            form = {"result_format": "BASIC", "partial_unexpected_count": SAMPLE}
            by_index |= judge(failed, form)
    return [
        _build_outcome(expectation, by_index[index], name)
        for index, expectation in enumerate(suite)
    ]


def require(outcomes: Iterable[ExpectationOutcome]) -> None:
    """Raise ExpectationFailed, which lists every failed blocking outcome, if there are any."""
    failed = [o.message for o in outcomes if o.expectation.blocking and not o.passed]
    if failed:
        raise ExpectationFailed(
            f"{'; '.join(failed)}. Correct the data or the stage that makes it, then run again."
        )


def _column_expectations(name: str, column: Column) -> list[DataExpectation]:
    expectations: list[tuple[str, dict[str, Any]]] = []
    if not column.nullable:
        expectations.append(("expect_column_values_to_not_be_null", {}))
    if column.values is not None:
        expectations.append(
            ("expect_column_values_to_be_in_set", {"value_set": [str(v) for v in column.values]})
        )
    if column.low is not None or column.high is not None:
        expectations.append(
            (
                "expect_column_values_to_be_between",
                {"min_value": column.low, "max_value": column.high},
            )
        )
    if column.kind == "json":
        expectations.append(("expect_column_values_to_be_json_parseable", {}))
    return [
        DataExpectation(type=kind, kwargs={"column": name, **kwargs}, blocking=True)
        for kind, kwargs in expectations
    ]


def _domain_object(index: int, expectation: DataExpectation) -> Any:
    from great_expectations.exceptions import GreatExpectationsError
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    try:
        return ExpectationConfiguration(
            type=expectation.type, kwargs=dict(expectation.kwargs), meta={"index": index}
        ).to_domain_obj()
    except (GreatExpectationsError, ValueError) as cause:
        reason = " ".join(str(cause).split())
        raise ConfigurationError(
            f"Invalid expectation {expectation.type} with {expectation.kwargs}: {reason}."
        ) from cause


def _build_outcome(expectation: DataExpectation, result: Any, name: str) -> ExpectationOutcome:
    details: Mapping[str, Any] = result.result
    count = details.get("unexpected_count")
    sample = tuple(
        str(value)[:SHOWN] for value in details.get("partial_unexpected_list", ())[:SAMPLE]
    )
    passed = bool(result.success)
    message = (
        f"{name}, {expectation.subject}: {expectation.type} "
        f"{'holds' if passed else _explain_failure(result, count, sample)}"
    )
    return ExpectationOutcome(
        expectation=expectation,
        passed=passed,
        n_unexpected=None if count is None else int(count),
        sample=sample,
        message=message,
    )


def _explain_failure(result: Any, count: int | None, sample: tuple[str, ...]) -> str:
    raised = _first_exception(result.exception_info)
    if raised:
        return f"could not be checked ({raised})"
    if count is not None:
        return (
            f"fails in {count} of {result.result['element_count']} rows, such as "
            f"{', '.join(sample)}"
        )
    mismatch = (result.result.get("details") or {}).get("mismatched")
    return (
        f"fails: {mismatch if mismatch else 'observed ' + str(result.result.get('observed_value'))}"
    )


def _first_exception(info: Mapping[str, Any] | None) -> str:
    """The first exception in `info`, which is either flat or one entry per metric, as with a
    missing column.
    """
    info = info or {}
    if "raised_exception" in info:
        return (
            str(info.get("exception_message") or "no message") if info["raised_exception"] else ""
        )
    messages = [
        str(entry.get("exception_message"))
        for entry in info.values()
        if isinstance(entry, Mapping) and entry.get("raised_exception")
    ]
    return messages[0] if messages else ""
