"""The start page: who sees it, what it says of an empty and of a living project."""

from datetime import datetime, timedelta

import pytest

from rlhf_pipeline.core.config import HomeFacts
from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.core.records import (
    AnnotatorKind,
    Cause,
    ChangeCauses,
    DriftEvent,
    Interval,
    NewVote,
    Promotion,
    Role,
    TriggerDecision,
)
from tests.policy_versions import put_versions
from tests.web.conftest import Web


def vote(
    web: Web,
    comparison_id: str,
    at: datetime | None = None,
    kind: AnnotatorKind | None = None,
    annotator_id: str = "ann",
) -> None:
    web.store.votes.cast(
        NewVote(
            comparison_id=comparison_id,
            annotator_id=annotator_id if kind is None else kind,
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


@pytest.mark.parametrize(
    ("role", "start"),
    [("annotator", "/annotate"), ("curator", None), ("engineer", None), ("admin", None)],
)
def test_each_role_starts_on_its_page(paged: Web, role: str, start: str | None):
    browser = paged.browser(paged.add(Role(role)))
    answer = browser.get(f"{paged.url}/")
    assert answer.headers.get("location") == start
    assert answer.status_code == (302 if start else 200)
    assert ('<li><a href="/"' in browser.get(f"{paged.url}/me").text) == (start is None)
    assert browser.get("/home").status_code == (403 if start else 200)


def test_empty_project_shows_three_steps_until_a_vote(paged: Web):
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
    paged.store.cards.offer(ids, overlap=1)
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
    assert "Votes are being collected" in page
    text = " ".join(page.split())
    assert "votes today: 2; people voting now" in text
    assert "2 votes in all, 1 simulated" in text
    assert 'href="/comparisons?status=waiting"' in page


def test_problems_are_listed_with_links(paged: Web):
    vote(paged, paged.publish(1)[0])
    reader = paged.client("engineer")
    assert [item["text"] for item in reader.get("/home").json()["attention"]] == [
        "no daemon is running, so nothing starts by itself: start rlhf dev or rlhf loop"
    ]
    paged.store.metric_points.put([point(paged, "daemon.silent_seconds", 0)])
    assert reader.get("/home").json()["attention"] == []
    paged.settings.home.mkdir(parents=True, exist_ok=True)
    notices = {"demo.policy@1": ("its template opens <think>",), "demo.policy@2": ("another",)}
    HomeFacts(project="demo", policy_notices=notices).write(paged.settings.home)
    paged.store.promotions.record(
        Promotion(
            model_name="demo.policy",
            version=1,
            previous_version=None,
            data_seq=None,
            reason="first",
            actor="test",
            promoted_at=paged.clock.now(),
        )
    )
    assert [item["text"] for item in reader.get("/home").json()["attention"]] == [
        "demo.policy@1: its template opens <think>"
    ]
    HomeFacts(project="demo").write(paged.settings.home)
    model = {"reward_model": "demo.reward_model@1"}
    paged.store.metric_points.put(
        [
            point(paged, "model.accuracy", 0.6, **model),
            point(paged, "model.accuracy_ceiling", 0.8, **model),
            point(paged, "runs.failed", 2, job="collection"),
            point(paged, "daemon.silent_seconds", 7200),
            point(paged, "drift.verdict", 1, space="overall"),
            point(paged, "drift.verdict", 2, space="scores"),
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
    assert [item["text"] for item in home["attention"]] == [
        "failed today: 2 runs of collection",
        "no sensor has ticked for 2.0 hours: start the daemon or rlhf loop",
        "1 drift event without a decision",
        f"the drift report of {paged.clock.now().date()} warns of a change that is not confirmed "
        "yet",
        "the reward model predicts worse than the votes allow: its accuracy lies below the noise "
        "ceiling",
    ]
    labels = [champion["label"] for champion in home["champions"]]
    assert labels == ["demo.reward_model@1", "demo.policy@1"]
    assert home["headline"]["text"] == "No change of taste so far."
    assert {p["name"]: p["value"] for p in home["figures"]} == {
        "model.accuracy": 0.6,
        "model.accuracy_ceiling": 0.8,
    }
    page = paged.browser(paged.add(Role.AUDITOR)).get(f"{paged.url}/").text
    assert "failed today: 2 runs of collection" in page
    assert "since 3 days ago" in page.replace("\n", " ")


def test_days_before_the_first_model_are_not_called_steady(paged: Web):
    """Nothing predicted their votes, so nothing could notice a change among them."""
    ids = paged.publish(2)
    for days, comparison_id in zip((5, 3), ids, strict=True):
        vote(paged, comparison_id, paged.clock.now() - timedelta(days=days))
    paged.store.promotions.record(
        Promotion(
            model_name="demo.reward_model",
            version=1,
            previous_version=None,
            data_seq=2,
            reason="first",
            actor="test",
            promoted_at=paged.clock.now(),
        )
    )
    day = (paged.clock.now() - timedelta(days=3)).date()
    headline = paged.client("engineer").get("/home").json()["headline"]
    assert headline["text"] == (
        f"No change of taste since {day:%-d %b}. Of earlier votes it is unknown: no reward model "
        "predicted them."
    )


def test_home_dates_changes_and_replayed_runs_by_votes(paged: Web):
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
    paged.store.decisions.apply_rule(
        lambda evidence: TriggerDecision(action="hold", reasons=(), event_ids=(), change_seq=1),
        now=paged.clock.now(),
        champion="demo.reward_model@1",
    )
    home = paged.client("engineer").get("/home").json()
    assert home["gate"]["evaluation"]["win_rate"] == gate.evaluation.win_rate.model_dump(
        mode="json"
    )
    assert home["gate"]["votes_until"] == earlier.date().isoformat()
    page = " ".join(paged.browser(paged.add(Role.AUDITOR)).get(f"{paged.url}/").text.split())
    assert f"since votes up to {earlier.date()}" in page
    won = next(gate.evaluation.win_rate for gate in paged.store.gates.all() if gate.promoted)
    policy = paged.client("engineer").get("/home").json()["champions"][1]
    assert policy["win_rate"] == won.model_dump(mode="json")
    share = f"{won.value:.0%} [{won.low * 100:.0f}, {won.high * 100:.0f}]"
    assert f"beats version 1 in {share}; since" in page
    paged.store.promotions.record(
        Promotion(
            model_name="demo.policy",
            version=1,
            previous_version=2,
            data_seq=None,
            reason="back",
            actor="test",
            promoted_at=paged.clock.now(),
        )
    )
    back = paged.client("engineer").get("/home").json()["champions"][1]
    assert (back["version"], back["votes_until"], back["win_rate"]) == (1, None, None)


def confirm_change(web: Web, state: str = "succeeded", remedy: str = "retrain") -> int:
    """A change of everybody's taste at vote 1, and its retraining."""
    put_event(web)
    causes = ChangeCauses(
        change_seq=1,
        until_seq=2,
        n_before=500,
        n_after=100,
        rise=Interval(value=0.2, low=0.1, high=0.3, n=600),
        causes=(
            Cause(
                name="taste", probability=0.9, effect=Interval(value=0.2, low=0.1, high=0.3, n=600)
            ),
        ),
        summary="Annotators' taste changed.",
    )
    fired = web.store.decisions.apply_rule(
        lambda evidence: TriggerDecision(
            action="hold" if remedy == "dismiss" else "fire",
            reasons=("confirmed",),
            event_ids=(),
            remedy=remedy,
            change_seq=1,
            evidence={"causes": causes.model_dump(mode="json"), "confirmed": ["adwin"]},
        ),
        now=web.clock.now(),
        champion="demo.reward_model@1",
    )
    web.store.training_jobs.mark_finished(fired.stored_id, succeeded=state == "succeeded")
    return fired.stored_id


def test_home_says_how_to_train_a_policy_after_a_replay(paged: Web):
    vote(paged, paged.publish(1)[0])
    confirm_change(paged)
    text = paged.client("approver").get("/home").json()["headline"]["text"]
    assert text == (
        f"Taste changed around {paged.clock.now():%-d %b}. The policy does not follow it yet: "
        "rlhf policy train trains one on these votes."
    )


def test_refused_candidate_keeps_the_change_first(paged: Web):
    vote(paged, paged.publish(1)[0])
    put_versions(paged.store, paged.settings.frames)
    number = confirm_change(paged)  # after the last promotion
    gate = paged.store.gates.latest()
    paged.store.gates.record(gate.model_copy(update={"decided_at": paged.clock.now()}))
    approver = paged.client("approver")
    headline = approver.get("/home").json()["headline"]
    today = f"{paged.clock.now():%-d %b}"
    assert headline["tone"] == "problem"
    assert headline["text"].startswith(
        f"Taste changed around {today}. The policy does not: policy 3 "
    )
    assert [act["label"] for act in headline["acts"]] == [
        "Serve policy 3 anyway",
        "Compare them",
        "Keep the present policy",
        "Evidence",
    ]
    assert approver.get(f"/decisions/{number}").json()["actions"] == ["keep"]
    form = {"answer": "nothing", "reason": "the old style is asked for"}
    assert approver.post(f"/decisions/{number}:answer", json=form).status_code == 201
    headline = approver.get("/home").json()["headline"]
    assert headline["text"] == f"Taste changed around {today}. A person kept the present policy."


def test_dismissed_rise_does_not_show_a_cause(paged: Web):
    """Which may name people who did nothing wrong."""
    vote(paged, paged.publish(1)[0])
    confirm_change(paged, remedy="dismiss")
    headline = paged.client("auditor").get("/home").json()["headline"]
    assert headline["text"] == (
        f"From {paged.clock.now():%-d %b} on errors rose above those stated. Later votes show no "
        "rise: a false alarm."
    )


def test_open_voter_is_warned_while_no_blind_user_exists(paged: Web):
    admin, annotator = paged.add(Role.ADMIN), paged.add(Role.ANNOTATOR)
    vote(paged, paged.publish(1)[0], annotator_id=admin.user_id)
    browser, warning = paged.browser(admin), "Your votes are not blind"
    assert warning not in browser.get(f"{paged.url}/").text
    paged.store.users.change(annotator.user_id, disabled=True, actor="test")
    assert warning in browser.get(f"{paged.url}/").text
