"""The start page: who sees it, what it says of an empty and of a living project."""

import re
from datetime import datetime, timedelta

import pandas as pd
import pytest

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.frames import PROMPTS, check_frame
from rlhf_pipeline.monitoring import Alert, AlertState, MetricPoint
from rlhf_pipeline.records import (
    AnnotatorKind,
    DriftEvent,
    NewVote,
    Promotion,
    Role,
    TriggerDecision,
)
from rlhf_pipeline.web.home.stages import StageFile, describe_stages
from tests.policy_versions import put_versions
from tests.web.conftest import Web
from tests.web.databases import on_sqlite


def vote(
    web: Web, comparison_id: str, at: datetime | None = None, kind: AnnotatorKind | None = None
) -> None:
    web.store.votes.cast(
        NewVote(
            comparison_id=comparison_id,
            annotator_id="ann" if kind is None else kind,
            annotator_kind=kind or AnnotatorKind.HUMAN,
            origin="api",
            choice="a",
            voted_at=at or web.clock.now(),
            idempotency_key=comparison_id,
        )
    )


def point(web: Web, name: str, value: float, **labels: str) -> MetricPoint:
    now = web.clock.now()
    return MetricPoint(
        day=now.date(),
        name=name,
        labels=labels,
        n=100,
        value=value,
        low=value - 0.02,
        high=value + 0.02,
        measured_at=now,
    )


def put_event(web: Web, seq: int = 1) -> None:
    web.store.events.add(
        [
            DriftEvent(
                kind="drift",
                model_version="demo.reward_model@1",
                detector="adwin",
                params_hash="p",
                stream="errors",
                seq=seq,
                day=web.clock.now().date(),
                evidence={},
            )
        ]
    )


def put_alerts(web: Web, *states: AlertState) -> None:
    """The oldest first."""
    now = web.clock.now()

    with web.store.alerts.advancing() as (_, _, number, put):
        opened = [
            Alert(
                alert_id=number + i,
                rule="queue_age",
                subject=f"subject {number + i}",
                severity="warning",
                state=state,
                title="The queue is old",
                opened_at=now,
                seen_at=now,
            )
            for i, state in enumerate(states)
        ]
        put(opened, [])


@on_sqlite
@pytest.mark.parametrize(
    ("role", "start"),
    [("annotator", "/annotate"), ("curator", "/progress"), ("engineer", None), ("admin", None)],
)
def test_each_role_starts_where_its_work_is(paged: Web, role: str, start: str | None):
    browser = paged.browser(paged.add(Role(role)))
    answer = browser.get(f"{paged.url}/")
    assert answer.headers.get("location") == start
    assert answer.status_code == (302 if start else 200)
    assert ('<li><a href="/"' in browser.get(f"{paged.url}/me").text) == (start is None)
    assert browser.get("/home").status_code == (403 if start else 200)


@on_sqlite
def test_an_empty_project_shows_three_steps_until_somebody_votes(paged: Web):
    reader = paged.client("engineer")
    steps = reader.get("/home").json()["next_steps"]
    assert [step["is_done"] for step in steps] == [False, False, False]
    browser = paged.browser(paged.add(Role.ADMIN))
    page = browser.get(f"{paged.url}/").text
    assert ("What to do next" in page, '<a href="/users">Invite' in page) == (True, True)
    assert steps[1]["link"] is None, "engineers may not open the page of users"
    paged.add(Role.ANNOTATOR)
    ids = paged.publish(2, offer=False)
    steps = reader.get("/home").json()["next_steps"]
    assert [step["is_done"] for step in steps] == [False, True, False]
    assert (steps[0]["title"], steps[0]["link"]) == ("Offer comparisons", "/comparisons")
    paged.store.assignments.offer(ids, overlap=1)
    assert [s["is_done"] for s in reader.get("/home").json()["next_steps"]] == [True, True, False]
    vote(paged, ids[0])
    home = reader.get("/home").json()
    assert home["next_steps"] == []
    assert (home["work"]["n_votes"], home["work"]["n_votes_today"]) == (1, 1)
    assert (home["work"]["n_voting_now"], home["work"]["n_open"]) == (1, 2)
    vote(paged, ids[1], kind=AnnotatorKind.SIMULATED)
    work = reader.get("/home").json()["work"]
    assert (work["n_votes_today"], work["n_simulated"]) == (2, 1), "a vote is seen at once"
    page = browser.get(f"{paged.url}/").text
    assert "The loop today" in page
    assert "of 2, 1 simulated; newest day" in page
    silent = "No alert is open. Until a daemon runs, only its silence is watched."
    assert silent in " ".join(page.split())
    assert 'href="/comparisons?status=waiting"' in page


@on_sqlite
def test_what_is_wrong_needs_attention_and_leads_somewhere(paged: Web):
    vote(paged, paged.publish(1)[0])
    reader = paged.client("engineer")
    assert [one["text"] for one in reader.get("/home").json()["attention"]] == [
        "no daemon is running, so nothing starts by itself: start rlhf dev or rlhf loop"
    ]
    paged.store.metric_points.put([point(paged, "daemon.silent_seconds", 0)])
    assert reader.get("/home").json()["attention"] == []
    model = {"reward_model": "demo.reward_model@1"}
    paged.store.metric_points.put(
        [
            point(paged, "model.accuracy", 0.6, **model),
            point(paged, "model.accuracy_ceiling", 0.8, **model),
            point(paged, "runs.failed", 2, job="collection"),
            point(paged, "daemon.silent_seconds", 7200),
            point(paged, "drift.verdict", 1, space="overall"),
            point(paged, "drift.verdict", 2, space="scores"),
            point(paged, "spend.amount", 1.5, lane="openai/x"),
        ]
    )
    put_event(paged)
    paged.store.promotions.record(
        Promotion(
            model_name="demo.reward_model",
            version=1,
            previous_version=None,
            data_seq=None,
            reason="first",
            actor="test",
            promoted_at=paged.clock.now() - timedelta(days=3),
        )
    )
    home = reader.get("/home").json()
    assert [one["text"] for one in home["attention"]] == [
        "not made, because runs failed: prompts, completions",
        "no sensor has ticked for 2.0 hours: start the daemon or rlhf loop",
        "1 drift event without a decision",
        f"the drift report of {paged.clock.now().date()} warns of a change that is not confirmed "
        "yet",
        "the reward model predicts worse than the votes allow: its accuracy lies below the noise "
        "ceiling",
    ]
    assert home["spending"] == {"today": 1.5, "days_30": 1.5}
    assert [one["label"] for one in home["champions"]] == ["demo.reward_model@1"]
    assert {p["name"]: p["value"] for p in home["figures"]} == {
        "model.accuracy": 0.6,
        "model.accuracy_ceiling": 0.8,
    }
    page = paged.browser(paged.add(Role.AUDITOR)).get(f"{paged.url}/").text
    assert "because runs failed: prompts, completions" in page
    assert "promoted 3 days ago" in page
    scoped = paged.client("engineer", scopes=["metrics.read"])
    assert scoped.get("/home").json()["alerts"] is None


@on_sqlite
def test_figures_of_an_earlier_reward_model_name_it_and_need_no_attention(paged: Web):
    vote(paged, paged.publish(1)[0])

    def put(version: int, accuracy: float) -> None:
        model = {"reward_model": f"demo.reward_model@{version}"}
        values = {"model.accuracy": accuracy, "model.accuracy_ceiling": 0.9}
        paged.store.metric_points.put(
            [point(paged, name, value, **model) for name, value in values.items()]
        )

    for version in (1, 2):
        paged.store.promotions.record(
            Promotion(
                model_name="demo.reward_model",
                version=version,
                previous_version=None,
                data_seq=None,
                reason="first",
                actor="test",
            )
        )
    put(1, 0.6)
    reader, browser = paged.client("engineer"), paged.browser(paged.add(Role.AUDITOR))
    assert not any("predicts worse" in a["text"] for a in reader.get("/home").json()["attention"])
    assert ", of version 1" in browser.get(f"{paged.url}/").text
    put(2, 0.7)  # the day is reported again
    home = reader.get("/home").json()
    assert [p["value"] for p in home["figures"] if p["name"] == "model.accuracy"] == [0.7]
    assert any("predicts worse" in a["text"] for a in home["attention"])
    assert ", of version" not in browser.get(f"{paged.url}/").text


@on_sqlite
def test_all_open_events_and_alerts_count_though_twenty_are_listed(web: Web):
    vote(web, web.publish(1)[0])
    for seq in range(1, 26):
        put_event(web, seq)
    put_alerts(web, "open", *["acknowledged"] * 20)
    reader = web.client("engineer")
    home = reader.get("/home").json()
    found = [one["text"] for one in home["attention"]]
    assert (found[0], "25 drift events without a decision" in found) == ("1 alert open", True)
    assert (len(home["alerts"]), len(home["drift_events"])) == (20, 20)
    assert [one["state"] for one in home["alerts"][:2]] == ["open", "acknowledged"]
    put_alerts(web, *["open"] * 24)
    home = reader.get("/home").json()
    assert home["attention"][0]["text"] == "25 alerts open"
    assert {one["state"] for one in home["alerts"]} == {"open"}


@on_sqlite
def test_failed_runs_of_made_stages_and_of_other_jobs_need_attention(paged: Web):
    vote(paged, paged.publish(1)[0])
    files = Artefacts(paged.settings.frames)
    files.write({files.path("calibration"): b"{}"})
    paged.store.metric_points.put(
        [
            point(paged, "daemon.silent_seconds", 0),
            point(paged, "runs.failed", 1, job="recalibration"),
            point(paged, "runs.failed", 2, job="retention"),
            point(paged, "runs.failed", 0, job="learning"),
        ]
    )
    home = paged.client("engineer").get("/home").json()
    assert [one["text"] for one in home["attention"]] == [
        "failed today: 1 run of recalibration, 2 runs of retention"
    ]
    page = paged.browser(paged.add(Role.AUDITOR)).get(f"{paged.url}/").text
    assert "no failed run" not in page


@on_sqlite
def test_only_readers_of_votes_are_led_to_them(paged: Web):
    (comparison_id,) = paged.publish(1)
    vote(paged, comparison_id)
    pages = {
        role: paged.browser(paged.add(role)).get(f"{paged.url}/").text
        for role in (Role.AUDITOR, Role.APPROVER)
    }
    found = {role: '<a href="/votes">votes</a>' in page for role, page in pages.items()}
    assert found == {Role.AUDITOR: True, Role.APPROVER: False}
    assert "nothing spent in the last 30 days" in pages[Role.AUDITOR]
    stages = re.findall(r'<li class="stage .*?">\s*<a href="(.*?)">', pages[Role.AUDITOR])
    assert (len(stages), [at for at in stages if not at.startswith("/")]) == (8, [])


@on_sqlite
def test_home_dates_the_change_by_its_vote_and_replayed_runs_by_their_votes(paged: Web):
    """A run of today may decide about votes of last year."""
    earlier = paged.clock.now() - timedelta(days=300)
    (comparison_id,) = paged.publish(1)
    vote(paged, comparison_id, earlier)
    put_versions(paged.store, paged.settings.frames)
    gate = paged.store.gates.latest()
    paged.store.promotions.record(
        Promotion(
            model_name="demo.reward_model",
            version=1,
            previous_version=None,
            data_seq=1,
            reason="first",
            actor="test",
            promoted_at=gate.decided_at - timedelta(minutes=1),
        )
    )
    put_event(paged)
    paged.store.decisions.decide(
        lambda evidence: TriggerDecision(action="hold", reasons=(), event_ids=(), change_seq=1),
        now=paged.clock.now(),
        champion="demo.reward_model@1",
    )
    home = paged.client("engineer").get("/home").json()
    assert datetime.fromisoformat(home["decision"]["changed_at"]) == earlier
    assert home["gate"]["win_rate"] == gate.evaluation.win_rate.model_dump(mode="json")
    assert home["gate"]["votes_until"] == earlier.date().isoformat()
    page = " ".join(paged.browser(paged.add(Role.AUDITOR)).get(f"{paged.url}/").text.split())
    assert f'the change began <time datetime="{earlier:%Y-%m-%dT%H:%M:%SZ}"' in page
    assert f"with votes up to {earlier.date()} (run" in page
    assert 'href="/evolution"' in page


@on_sqlite
def test_it_shows_the_last_decision_that_acted_behind_a_later_hold(paged: Web):
    vote(paged, paged.publish(1)[0])
    made = (("fire", "everybody changed"), ("hold", "too few votes"), ("hold", "unconfirmed"))
    for seq, (action, reason) in enumerate(made, start=1):
        put_event(paged, seq)
        paged.store.decisions.decide(
            lambda evidence, action=action, reason=reason: TriggerDecision(
                action=action, reasons=(reason,), event_ids=(), change_seq=None
            ),
            now=paged.clock.now(),
            champion="demo.reward_model@1",
        )
    home = paged.client("engineer").get("/home").json()
    assert home["decision"]["reasons"] == ["unconfirmed"]
    assert home["fire"]["reasons"] == ["everybody changed"]
    page = paged.browser(paged.add(Role.AUDITOR)).get(f"{paged.url}/").text
    assert [reason in page for _, reason in made] == [True, False, True]


@on_sqlite
def test_pages_of_charts_link_to_days_that_they_leave_out(paged: Web):
    long_ago = paged.clock.now() - timedelta(days=400)
    for comparison_id, at in zip(paged.publish(2), (long_ago, paged.clock.now()), strict=True):
        vote(paged, comparison_id, at)
    reader = paged.browser(paged.add(Role.AUDITOR))
    link = f'href="/preferences?since={long_ago.date()}&amp;by=day">All days since'
    assert link in reader.get(f"{paged.url}/preferences").text
    assert "All days" not in reader.get(f"{paged.url}/preferences?since={long_ago.date()}").text
    link = f'href="/quality/annotator?since={long_ago.date()}&amp;annotator_id=ann">All days since'
    assert link in reader.get(f"{paged.url}/quality/annotator?annotator_id=ann").text
    points = [point(paged, "production.errors", 0.1, model="demo.policy@1")]
    points.append(points[0].model_copy(update={"day": long_ago.date()}))
    paged.store.metric_points.put(points)
    link = f'href="/production?since={long_ago.date()}">All days since'
    assert link in reader.get(f"{paged.url}/production").text


@on_sqlite
def test_a_stage_has_the_time_day_and_rows_of_its_newest_file(web: Web):
    prompts = pd.DataFrame(
        {
            "day": "2026-01-02",
            "prompt_id": ["p0", "p1"],
            "text": "Why?",
            "category": "factual",
            "difficulty": "easy",
            "source": "templates",
            "template_id": None,
            "variables": "{}",
            "reference": None,
            "seed": 7,
        }
    )
    files = Artefacts(web.settings.frames)
    frame = check_frame(prompts, PROMPTS)
    for day in ("2026-01-01", "2026-01-02"):
        files.write_frame("prompts", frame.assign(day=day), day)
    stages = {s["stage"]: s for s in web.client("engineer").get("/home").json()["stages"]}
    made = stages["prompts"]
    assert (made["state"], made["day"], made["n_rows"]) == ("today", "2026-01-02", 2)
    assert stages["votes"]["state"] == "never"


@on_sqlite
def test_a_stage_made_after_its_run_failed_is_made_and_a_running_one_runs(web: Web):
    now = web.clock.now()
    old = StageFile(now - timedelta(days=2), None, None)
    failed = point(web, "runs.failed", 1, job="retraining")

    def state(file: StageFile | None, running: list[str], points: list[MetricPoint]) -> str:
        files = {} if file is None else {"retraining_set": file}
        stages = describe_stages(files, running, points, now.date())
        return next(s.state for s in stages if s.stage == "retraining_set")

    assert state(None, [], []) == "never"
    assert state(old, [], []) == "earlier"
    assert state(old, [], [failed]) == "failed"
    assert state(old, ["policy_training"], [failed]) == "running"
    assert state(StageFile(now, None, None), [], [failed]) == "today"
    yesterday = failed.model_copy(update={"day": now.date() - timedelta(days=1)})
    assert state(old, [], [yesterday]) == "earlier"
