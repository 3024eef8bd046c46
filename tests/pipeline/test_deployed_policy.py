"""The deployed policy in the day's report: summarised once, made again where inputs change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlhf_pipeline.application.assets.day_series import load_policy_days


def test_the_report_shows_the_deployed_policy(
    grown: Any, branch: Callable[..., Any], tmp_path: Path
) -> None:
    project = branch(grown)
    days = [project.day(n) for n in range(3)]
    project.materialise(["drift_report"], days[-1])
    page = Path(project.files.report_path("drift", days[-1])).read_text(encoding="utf-8")
    assert "The deployed policy, the latest day first" in page

    series = load_policy_days(days[-1:], project.files, project.store)
    assert series.new == []  # stored with the report
    assert [point.day for point in series.until(days[-1])][-1] == days[-1]

    first = project.files.read_frame("completions", days[0])
    project.files.write_frame("completions", first.iloc[1:], days[0])
    again = load_policy_days(days[-1:], project.files, project.store)
    assert [point.day for point in again.new] == [days[0]]

    project.files.path("completions", days[0]).write_bytes(b"broken")
    broken = load_policy_days(days[-1:], project.files, project.store)
    assert broken.left_out is not None
    assert broken.left_out.startswith("Left out: a day's frames cannot be read")
