"""The parts of the day's page, each a run of elements. Knows numbers and frames; knows neither page
nor storage.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

import pandas as pd

from rlhf_pipeline.calibration.group_calibration import MIN_PAIRS, largest_groups
from rlhf_pipeline.drift import drawings
from rlhf_pipeline.drift.clusters import Cluster, ClusterParams, SemanticClusters
from rlhf_pipeline.drift.markup import Child, make_element, make_table, truncate
from rlhf_pipeline.drift.page_text import (
    describe_best_error_rate,
    describe_ceiling,
    display_name,
    explain_ceiling,
    format_interval,
    format_p_value,
    format_share,
    format_value,
    make_badge,
    missing_note,
)
from rlhf_pipeline.drift.reference import LEFT_OUT
from rlhf_pipeline.drift.reliability import MIN_IN_BIN, Reliability
from rlhf_pipeline.drift.stream import StreamWarning
from rlhf_pipeline.records import DriftEvent, GroupCalibration, Interval, ReliabilityBin, Verdict
from rlhf_pipeline.votes.plots import shorten

Texts = Mapping[str, tuple[str, str]]  # comparison id -> prompt, completion a

PROMPT_WIDTH, COMPLETION_WIDTH = 160, 100  # characters of an example
MOST_GROUPS, NAME_WIDTH = 20, 40  # groups that are seen at once, characters of their names


def render_drift_over_time(
    day: str,
    rows: pd.DataFrame,
    errors: pd.DataFrame,
    events: Sequence[DriftEvent],
    warnings: Sequence[StreamWarning],
    noise_ceiling: Interval | None,
) -> Iterable[Element]:
    """The error rate in vote order, and what each detector said of it."""
    if errors.empty:
        yield missing_note(
            "No vote has met a prediction of this model yet: there is no error to draw. "
            "Predictions are made when comparisons appear."
        )
    else:
        yield make_element(
            "p",
            "An error is a vote against the completion that the reward model scored higher. "
            "Detectors read them in the order of votes.",
        )
        drawn = drawings.draw_timeline(
            errors, events, warnings, day=day, noise_ceiling=noise_ceiling
        )
        yield make_figure(
            drawn,
            make_legend(
                ("curve", "error rate of the last 100 votes, with its 95 % band"),
                ("fired", "drift, with where the change is thought to begin"),
                ("warned", "warning"),
                ("today", "votes of this day"),
                *_ceiling_legend("best reachable, from the noise ceiling", noise_ceiling),
            ),
        )
        yield make_element("p", explain_ceiling(noise_ceiling))
    yield make_table(
        "What watches the errors",
        [
            "Detector",
            "Verdict",
            "Statistic",
            "Threshold",
            "p",
            "Reference",
            "Votes or rows",
            "What it saw",
        ],
        [
            [*_test_cells(row), _describe_signals(row)]
            for row in to_records(rows[rows["space"] == "errors"])
        ],
        numeric=range(2, 7),
    )


def render_clusters(
    found: SemanticClusters | str,
    texts_of: Callable[[Sequence[str]], Texts],
    params: ClusterParams,
    noise_ceiling: Interval | None = None,
) -> Iterable[Element]:
    """What became more, fewer or worse; `found` is what there is too little of, where no clusters
    could be made.
    """
    if isinstance(found, str):
        yield missing_note(found)
        return
    texts = texts_of([example for cluster in found.clusters for example in cluster.examples])
    alike = (
        "differ in which they hold"
        if found.p_value <= params.alpha
        else "hold them alike, as far as chance can tell"
    )
    yield make_element(
        "p",
        f"{len(found.clusters)} clusters of {found.n_reference + found.n_current:,} prompts by "
        "k-means over what the reward model sees of each, prompt with completion; the clusters "
        f"hold {format_share(found.explained)} of the variance. Reference and day {alike} (χ² "
        f"test, p {format_p_value(found.p_value)}). Each prompt counts once; those that got worse "
        "or grew stand first.",
    )
    yield make_figure(
        drawings.draw_cluster_changes(found.clusters),
        make_legend(
            ("ref", "reference"), ("now", "this day"), ("changed", "changed"), intervals=True
        ),
    )
    yield make_table(
        "Clusters, reference against day",
        [
            "Cluster",
            "Change",
            "Share of the prompts",
            "Error rate",
            "Prompts nearest the centre, with completion a",
        ],
        [_cluster_cells(cluster, texts) for cluster in found.clusters],
    )
    yield make_element(
        "p",
        f"A cluster grew or shrank where Fisher's exact test stays below {params.alpha:g} after "
        "correction for all clusters and the share moved by at least "
        f"{format_share(params.share_effect)}; it got worse where the error rate rose by at least "
        f"{format_share(params.error_effect)} at the same level. Below {params.min_in_cluster} "
        "prompts no error rate is given. Of all votes of the day: "
        f"{describe_best_error_rate(noise_ceiling)}.",
        class_="note",
    )


def _cluster_cells(cluster: Cluster, texts: Texts) -> list[Child]:
    change = {"grew": "grew", "shrank": "shrank", "steady": None}[cluster.change]
    said = " and ".join(
        word for word in ("got worse" if cluster.is_worse else None, change) if word
    )
    verdict = Verdict.DRIFT if cluster.is_worse else Verdict.WARNING if change else Verdict.STABLE
    shown = [texts[i] for i in cluster.examples if i in texts]
    examples = [
        (truncate(prompt, PROMPT_WIDTH), truncate(completion, COMPLETION_WIDTH))
        for prompt, completion in shown
    ]
    return [
        cluster.name,
        make_badge(verdict, said or "steady"),
        _before_after_cell(cluster.share_reference, cluster.share_current, cluster.p_share),
        _before_after_cell(cluster.error_reference, cluster.error_current, cluster.p_error),
        make_element(
            "ul",
            (
                make_element("li", prompt, make_element("small", completion))
                for prompt, completion in examples
            ),
            class_="examples",
        )
        if examples
        else "no text at hand",
    ]


def _before_after_cell(before: Interval | None, now: Interval | None, p: float | None) -> Child:
    """What it was and is, how sure that is, and the p-value of the difference."""
    pair = (("reference", before), ("today", now))
    lines = [
        make_element(
            "span",
            f"{when} ",
            "too few" if i is None else make_element("b", format_share(i.value)),
            class_="line",
        )
        for when, i in pair
    ]
    ranges = [
        make_element("small", f"{format_share(i.low)} to {format_share(i.high)}, {i.n:,} prompts")
        if i
        else None
        for _, i in pair
    ]
    shown = [part for line, span in zip(lines, ranges, strict=True) for part in (line, span)]
    return [
        *shown,
        None if p is None else make_element("span", f"p {format_p_value(p)}", class_="line"),
    ]


def render_calibration(
    before: Reliability | str,
    today: Reliability | str,
    rows: pd.DataFrame,
    noise_ceiling: Interval | None = None,
    by_group: Sequence[GroupCalibration] = (),
) -> Iterable[Element]:
    """Stated confidence against what came true, in the reference, today and in each group of today,
    and the tests of it.
    """
    yield from (missing_note(words) for words in (before, today) if isinstance(words, str))
    bins = [() if isinstance(side, str) else side.bins for side in (before, today)]
    if any(bins):
        yield make_element(
            "p",
            "Of predictions stated with 80 % confidence 80 % should be right: on the diagonal. "
            "Below it the model is overconfident.",
        )
        yield make_figure(
            drawings.draw_reliability(*bins, noise_ceiling=noise_ceiling),
            make_legend(
                ("ref", "reference"), ("now", f"this day; faint: fewer than {MIN_IN_BIN} rows"),
                *_ceiling_legend("noise ceiling", noise_ceiling), intervals=True,
            ),
        )  # fmt: skip
        yield make_element("p", describe_ceiling(noise_ceiling))
        measures: list[tuple[str, Callable[[Reliability], str | None]]] = [
            (
                "Calibration slope (1 is calibrated)",
                lambda r: None if r.slope is None else format_interval(r.slope),
            ),
            ("ECE, equal mass (never 0 by chance alone)", lambda r: format_interval(r.ece)),
            (
                "ECE without its noise",
                lambda r: None if r.ece_debiased is None else format_interval(r.ece_debiased),
            ),
            ("ECE, lower bound (97.5 %)", lambda r: f"{r.ece_lower_bound:.3f}"),
            ("Brier score (0.25 is a coin)", lambda r: format_interval(r.brier)),
            ("Rows", lambda r: f"{r.n:,}"),
        ]
        yield make_table(
            "Calibration, reference against day",
            ["Measure", "Reference", "This day"],
            [
                [
                    name,
                    *(
                        "too few" if isinstance(r, str) else measure(r) or "unknown"
                        for r in (before, today)
                    ),
                ]
                for name, measure in measures
            ],
            numeric=(1, 2),
        )
        yield make_element(
            "details",
            make_element("summary", "Reliability by stated confidence"),
            _bin_table(bins[0], bins[1]),
        )
    if by_group:
        shown = largest_groups(by_group, MOST_GROUPS)
        rest = [group for group in by_group if group not in shown]
        yield _group_table("This day by source and category", shown)
        if rest:
            yield make_element(
                "details",
                make_element("summary", f"{len(rest):,} smaller groups"),
                _group_table("Smaller groups", rest),
            )
        yield make_element(
            "p",
            f"95 % intervals. Of fewer than {MIN_PAIRS} comparisons no figure is given: it would "
            "be read as knowledge. A noise ceiling is unknown where no two votes overlap, and "
            "nobody judged one again.",
            class_="note",
        )
    yield make_table(
        "Calibration tests",
        ["Test", "Verdict", "Value", "Threshold", "Votes"],
        [
            [
                display_name(row["detector"]),
                make_badge(row["verdict"]),
                format_value(row["statistic"]),
                format_value(row["threshold"]),
                f"{row['n_current']:,}",
            ]
            for row in to_records(rows[rows["space"] == "calibration"])
        ],
        numeric=(2, 3, 4),
    )
    yield make_element(
        "p",
        "A test fails where even the favourable end of its interval is beyond the threshold, or "
        "its p is below it; each on a good model on about 2.5 % of days at most.",
        class_="note",
    )


def _ceiling_legend(words: str, ceiling: Interval | None) -> list[tuple[str, str]]:
    """Its entry of a legend, where it is drawn."""
    return (
        []
        if ceiling is None
        else [("ceiling", words if ceiling.basis is None else f"{words} ({ceiling.basis})")]
    )


def _group_table(caption: str, groups: Sequence[GroupCalibration]) -> Element:
    head = [
        "Group",
        "Comparisons",
        "Share predicted right",
        "Noise ceiling",
        "ECE without its noise",
        "Calibration slope",
    ]
    return make_table(caption, head, [_group_row(group) for group in groups], numeric=range(1, 6))


def _group_row(group: GroupCalibration) -> list[Child]:
    m = group.calibrated
    accuracy, ece, slope = (
        ("too few",) * 3
        if m is None
        else (interval_cell(m.accuracy), interval_cell(m.ece_debiased), interval_cell(m.slope))
    )
    return [
        f"{group.by}: {shorten(group.group, NAME_WIDTH)}",
        f"{group.n:,}",
        accuracy,
        interval_cell(group.noise_ceiling),
        ece,
        slope,
    ]


def interval_cell(interval: Interval | None) -> Child:
    """A figure of a table with its interval, and beside it of how few groups and what a ceiling is
    from.
    """
    if interval is None:
        return "unknown"
    beside = str(interval).rpartition("]")[2].strip()
    return (
        [format_interval(interval), make_element("small", beside)]
        if beside
        else format_interval(interval)
    )


def _bin_table(before: Sequence[ReliabilityBin], today: Sequence[ReliabilityBin]) -> Element:
    lows = sorted({b.low for b in (*before, *today)})
    found = [{b.low: b for b in side} for side in (before, today)]
    rows: list[list[Child]] = [
        [
            f"{100 * low:.0f} to {100 * low + 5:.0f} %",
            *(cell for side in found for cell in _bin_cells(side.get(low))),
        ]
        for low in lows
    ]
    head = ["Stated confidence", "Right in reference", "Rows", "Right today", "Rows"]
    return make_table("Share predicted right", head, rows, numeric=range(1, 5))


def _bin_cells(b: ReliabilityBin | None) -> tuple[str, str]:
    if b is None:
        return "–", "0"
    few = b.n < MIN_IN_BIN
    return (
        "too few"
        if few
        else f"{format_share(b.accuracy)} ({format_share(b.accuracy_low)} to "
        f"{format_share(b.accuracy_high)})",
        f"{b.n:,}",
    )


def render_data_drift(
    rows: pd.DataFrame, evidently: Mapping[str, Any], files: Sequence[str]
) -> Iterable[Element]:
    """The tests of lengths, confidence and embeddings, and what Evidently says of the same rows."""
    yield make_element(
        "p", "A change of the data alone is a warning: it is no proof that the model is wrong."
    )
    spaces = rows[~rows["space"].isin(["errors", "calibration", "overall"])]
    yield make_table(
        "Tests between the reference and the day",
        ["Space", "Verdict", "Statistic", "Threshold", "p", "Reference", "Day", "Test"],
        [
            [display_name(row["space"]), *_test_cells(row)[1:], display_name(row["detector"])]
            for row in to_records(spaces)
        ],
        numeric=range(2, 7),
    )
    for row in to_records(spaces[spaces["space"] == "embeddings"]):
        reason = str(row["evidence"].get("reason", ""))
        if reason.startswith(LEFT_OUT):
            yield missing_note(reason)
    columns = [m for m in evidently.get("metrics", []) if "column" in m.get("config", {})]
    if columns:
        yield make_table(
            "Evidently's data drift, one row per prompt",
            ["Column", "Method", "p", "Threshold", "Differs"],
            [_evidently_cells(m) for m in columns],
            numeric=(2, 3),
        )
    else:
        yield missing_note(
            "Evidently compared nothing: "
            f"{evidently.get('insufficient', 'it was handed no windows')}."
        )
    if files:
        names = [part for name in files for part in (", ", make_element("code", name))][1:]
        yield make_element(
            "p",
            "Evidently's own results lie beside this page in the MLflow run of the day's "
            "drift_report: ",
            names,
            ".",
            class_="note",
        )


def _evidently_cells(metric: Mapping[str, Any]) -> list[Child]:
    config, p = metric["config"], float(metric["value"])
    threshold = config.get("threshold")
    differs = "–" if threshold is None else "yes" if p < threshold else "no"
    return [
        display_name(config["column"]),
        str(config.get("method") or "default"),
        format_p_value(p),
        format_value(threshold),
        differs,
    ]


def _test_cells(row: Mapping[str, Any]) -> list[Child]:
    return [
        display_name(row["detector"]),
        make_badge(row["verdict"]),
        format_value(row["statistic"]),
        format_value(row["threshold"]),
        "–" if pd.isna(row["p_value"]) else format_p_value(float(row["p_value"])),
        f"{row['n_reference']:,}",
        f"{row['n_current']:,}",
    ]


def _describe_signals(row: Mapping[str, Any]) -> str:
    said = row["evidence"]
    events = [_describe_event(event) for event in said.get("events", [])]
    at = [f"{seq:,}" for seq in said.get("warnings_at", [])]
    warned = (
        [f"warning at vote {', '.join(at[:3])}{f' and {len(at) - 3} more' if len(at) > 3 else ''}"]
        if at
        else []
    )
    means = (
        [
            f"{format_share(said['mean_reference'])} before, {format_share(said['mean_current'])} "
            "today"
        ]
        if "mean_current" in said
        else []
    )
    return (
        "; ".join([*events, *warned, *means, *([said["reason"]] if "reason" in said else [])])
        or "no rise"
    )


def _describe_event(event: Mapping[str, Any]) -> str:
    after = event.get("error_after", event.get("error_rate"))
    since = f", since about {event['change_seq']:,}" if event.get("change_seq") else ""
    rise = (
        f": {format_share(event['error_before'])} to {format_share(after)}"
        if "error_before" in event and after is not None
        else ""
    )
    return f"drift at vote {event['seq']:,}{since}{rise}"


def make_figure(drawn: Element, caption: Element) -> Element:
    """A picture that scrolls by itself on a narrow screen."""
    return make_element(
        "figure",
        make_element(
            "div", drawn, class_="scroll picture", tabindex="0", role="region", aria_label="picture"
        ),
        caption,
    )


def make_legend(*entries: tuple[str, str], intervals: bool = False) -> Element:
    """The marks of a picture, `drawings.key` of each, and what they mean."""
    bars = make_element("li", "bars: 95 % intervals") if intervals else None
    return make_element(
        "figcaption",
        make_element(
            "ul",
            (make_element("li", drawings.legend_mark(kind), words) for kind, words in entries),
            bars,
            class_="legend",
        ),
    )


def to_records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        dict(zip(rows.columns, row, strict=True)) for row in rows.itertuples(index=False, name=None)
    ]
