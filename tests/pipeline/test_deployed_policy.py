"""The deployed policy in the day's report: summarised once, made again where inputs change."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlhf_pipeline.application.assets.day_series import load_policy_days
from rlhf_pipeline.watch.drift.policy import PolicyParams


def test_the_report_watches_the_deployed_policy(
    grown: Any, branch: Callable[..., Any], tmp_path: Path
) -> None:
    project = branch(grown)
    days = [project.day(n) for n in range(3)]
    project.materialise(["drift_report"], days[-1])
    report = project.files.read_frame("drift_report", days[-1])
    rows = report[report["space"] == "policy"].set_index("detector")
    assert set(rows.index) == {"mean_reward", "refusals", "mean_length"}
    assert rows.loc["mean_length", "n_reference"] > 0
    assert json.loads(rows.loc["refusals", "evidence"])["policy"] == "demo.policy@1"
    page = Path(project.files.report_path("drift", days[-1])).read_text(encoding="utf-8")
    assert "The deployed policy, the latest day first" in page

    params = PolicyParams()
    series = load_policy_days(days[-1:], project.files, project.store, params)
    assert series.new == []  # stored with the report
    assert [point.day for point in series.until(days[-1], params.policy_days)][-1] == days[-1]
    assert series.until(days[-1], 0) == [series.days[days[-1]]]

    first = project.files.read_frame("completions", days[0])
    project.files.write_frame("completions", first.iloc[1:], days[0])
    again = load_policy_days(days[-1:], project.files, project.store, params)
    assert [point.day for point in again.new] == [days[0]]

    project.files.path("completions", days[0]).write_bytes(b"broken")
    broken = load_policy_days(days[-1:], project.files, project.store, params)
    assert broken.left_out is not None
    assert broken.left_out.startswith("Left out: a day's frames cannot be read")
