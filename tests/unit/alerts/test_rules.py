"""Rules: what breaks them, what changes them, and how a finding reads."""

from datetime import UTC, datetime, timedelta

import pytest

from rlhf_pipeline.alerts.evaluation import evaluate
from rlhf_pipeline.alerts.readings import Reading
from rlhf_pipeline.alerts.rules import RULES, merge_rules
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.loop_settings import LoopSettings

NOW = datetime(2026, 1, 10, 12, tzinfo=UTC)


def reading(name="model.ece", value=0.2, days_ago=0, labels=None, **more):
    return Reading(
        name=name,
        measured_at=NOW - timedelta(days=days_ago),
        value=value,
        labels={"reward_model": "rm@1"} if labels is None else labels,
        **more,
    )


def statuses(rule, *readings):
    return {f.subject: f.status for f in evaluate([rule], readings, NOW)}


def changed(name, **given):
    return merge_rules({name: given})[name]


@pytest.mark.parametrize(
    ("low", "high", "status"), [(0.10, 0.3, "broken"), (0.05, 0.3, "near"), (None, None, "broken")]
)
def test_an_estimate_breaks_a_rule_only_by_its_bound(low, high, status):
    rule = RULES["calibration_error"]
    assert statuses(rule, reading(value=0.2, low=low, high=high)) == {"rm@1": status}


def test_the_upper_bound_counts_where_a_rule_is_broken_below():
    rule = RULES["agreement"]
    of = {"name": "agreement.rate", "labels": {}}
    assert statuses(rule, reading(value=0.5, low=0.4, high=0.7, **of)) == {"project": "near"}
    assert statuses(rule, reading(value=0.7, low=0.5, high=0.9, **of)) == {"project": "kept"}
    assert statuses(rule, reading(value=0.5, low=0.4, high=0.59, **of)) == {"project": "broken"}


def test_between_the_two_thresholds_a_rule_is_near():
    rule = changed("calibration_error", threshold=0.1, resolve_at=0.05)
    found = [statuses(rule, reading(value=v))["rm@1"] for v in (0.11, 0.07, 0.05)]
    assert found == ["broken", "near", "kept"]


def test_an_old_figure_opens_nothing():
    rule = RULES["calibration_error"]
    assert statuses(rule, reading(days_ago=7)) == {"rm@1": "broken"}
    assert statuses(rule, reading(days_ago=8)) == {"rm@1": "unknown"}
    assert statuses(rule, reading(days_ago=8, value=0.01)) == {"rm@1": "kept"}
    (finding,) = evaluate([rule], [reading(days_ago=8), reading(value=None)], NOW)
    assert (finding.status, finding.reading.value) == ("unknown", 0.2)


def test_too_small_a_count_is_found_once_its_day_is_over():
    own = {"reads": "votes.cast", "threshold": 10, "comparison": "below"}
    rule = merge_rules({"few_votes": own})["few_votes"]

    def count(value, days_ago):
        day = (NOW - timedelta(days=days_ago)).date()
        return reading("votes.cast", value, days_ago, {"source": "web"}, of_day=day)

    assert statuses(rule, count(12, 1), count(0, 0)) == {"web": "kept"}
    assert statuses(rule, count(0, 1), count(0, 0)) == {"web": "broken"}


def test_labels_choose_what_a_rule_reads():
    rule = changed("calibration_error", labels={"reward_model": "rm@2"})
    other = reading(labels={"reward_model": "rm@2"})
    assert statuses(rule, reading(), other) == {"rm@2": "broken"}


def test_a_rule_that_is_off_finds_nothing():
    assert statuses(changed("calibration_error", is_on=False), reading()) == {}


def test_a_title_holds_the_figures_and_never_fails_for_a_missing_label():
    (finding,) = evaluate([RULES["calibration_error"]], [reading()], NOW)
    assert finding.title == "The calibration error of rm@1 is 0.200 (limit 0.08)"
    (finding,) = evaluate([RULES["calibration_error"]], [reading(labels={})], NOW)
    assert finding.title == "The calibration error of ? is 0.200 (limit 0.08)"


def test_seconds_are_written_as_a_duration():
    titles = [
        evaluate([RULES["daemon_silent"]], [reading("daemon.silent_seconds", s, labels={})], NOW)[0]
        for s in (125.0, 72_180.0, 259_200.0)
    ]
    spans = [t.title.removeprefix("No sensor has ticked for ").split(":")[0] for t in titles]
    assert spans == ["2 minutes", "20 hours", "3 days"]


def test_a_project_adds_a_rule_over_any_metric():
    own = {"reads": "policy.reward", "threshold": 0.5, "comparison": "below"}
    rule = merge_rules({"low_reward": own})["low_reward"]
    read = reading(name="policy.reward", value=0.2, labels={"policy": "p@1"})
    (finding,) = evaluate([rule], [read], NOW)
    assert finding.title == "policy.reward of p@1 is 0.2, below 0.5"


def test_the_settings_file_changes_rules():
    loop = LoopSettings.parse({"alerts": {"rules": {"queue_age": {"threshold": 5}}}})
    assert merge_rules(loop.alerts.rules)["queue_age"].threshold == 5


@pytest.mark.parametrize(
    ("rule", "given", "message"),
    [
        ("queue_agee", {"threshold": 5}, r"alerts\.rules: .*Did you mean queue_age\?"),
        ("queue_age", {"treshold": 5}, r"'queue_age' has no field 'treshold'. .* threshold\?"),
        ("queue_age", {"within_days": -1}, r"'queue_age' .*within_days .* than or equal to 0"),
        ("mine", {"reads": "queue.opn", "threshold": 1}, r"Did you mean queue\.open\?"),
        ("queue_age", {"resolve_at": 99}, "alerts.rules: The rule 'queue_age' .*: resolve_at 99"),
    ],
)
def test_an_error_in_the_settings_file_names_rule_and_field(rule, given, message):
    with pytest.raises(ConfigurationError, match=message) as refusal:
        LoopSettings.parse({"alerts": {"rules": {rule: given}}})
    assert "{" not in str(refusal.value)


@pytest.mark.parametrize(
    "title", ["{value:zz}", "{subject:.2f}", "{", "a\0b", "{value.size}", "{}"]
)
def test_a_title_that_could_fail_in_a_tick_is_refused(title):
    with pytest.raises(ConfigurationError, match="title"):
        changed("queue_age", title=title)


def test_an_error_message_with_unstorable_signs_is_shown_without_them():
    broken = reading(name="runs.last_failed", labels={"job": "weekly"}, detail="a\0b \ud800")
    (finding,) = evaluate([RULES["run_failed"]], [broken], NOW)
    assert finding.title == "The last run of weekly failed: ab ?"
