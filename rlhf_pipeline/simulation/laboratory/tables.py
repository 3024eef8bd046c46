"""Turns a suite's report into table rows and Markdown."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from rlhf_pipeline.core.records import Interval
from rlhf_pipeline.simulation.laboratory.suite import SuiteReport, SuiteRow

OTHERS, CONFIRMED, WAITED = (
    "other remedies per 1,000 votes",
    "confirmed",
    "votes waited: median, 90 %",
)


def build_rows(rows: Sequence[SuiteRow]) -> list[dict[str, str]]:
    """Cells by column; a figure that no row has gets no column."""
    cells = [
        {
            "row": row.name,
            "world": row.title,
            "measured": row.unit,
            "figure": _format(row.figure),
            "bar": str(row.bar),
            "met": "yes" if row.is_met else "no",
            OTHERS: _format(row.others),
            CONFIRMED: _format(row.confirmed),
            WAITED: "-" if row.waited is None else "{:.0f}, {:.0f}".format(*row.waited),
        }
        for row in rows
    ]
    empty = [name for name in cells[0] if all(row[name] == "-" for row in cells)]
    return [{name: row[name] for name in row if name not in empty} for row in cells]


def describe_suite(report: SuiteReport) -> str:
    """What the figures are, in one paragraph."""
    return (
        f"{report.n_streams} streams a row, at the project's default settings; intervals are of "
        "95 %."
    )


def write_markdown(report: SuiteReport) -> str:
    lines = ["# Laboratory", "", describe_suite(report)]
    for title, rows in _group(report):
        lines += ["", f"## {title}", "", *_write_table(rows)]
    return "\n".join([*lines, ""])


def _group(report: SuiteReport) -> list[tuple[str, list[dict[str, str]]]]:
    titles = list(dict.fromkeys(row.group for row in report.rows))
    ordered = sorted(report.rows, key=lambda row: titles.index(row.group))
    return [
        (title, build_rows(list(rows))) for title, rows in groupby(ordered, lambda row: row.group)
    ]


def _write_table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *(list(row.values()) for row in rows)]
    return [f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines]


def _format(interval: Interval | None) -> str:
    if interval is None:
        return "-"
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
