"""Threat 8: whatever a prompt, a completion, a reason or a name says, no script runs and no request
leaves. In Chromium, under our policy.
"""

from typing import Any

import pytest

from rlhf_pipeline.core.records import AnnotatorKind, Choice, NewFeedback, NewVote, Role, utc_now
from tests.browser.page_actions import all_sent, log_in, press, read_card, until, wait_for_card
from tests.browser.payloads import ALIVE, PAYLOADS
from tests.browser.people import People
from tests.browser.test_pages import PAGES


@pytest.fixture
def watched(site: People, context: Any) -> Any:
    """A page whose every request is counted, those to other hosts by name; a script of theirs would
    raise a dialog.
    """
    page = context.new_page()
    page.foreign, page.dialogs = [], []  # type: ignore[attr-defined]

    def meet(route: Any) -> None:
        if route.request.url.startswith((site.url, "data:")):
            route.continue_()
        else:
            page.foreign.append(route.request.url)
            route.abort()

    context.route("**/*", meet)
    page.on("dialog", lambda dialog: (page.dialogs.append(dialog.message), dialog.dismiss()))
    yield page
    page.wait_for_timeout(300)  # for what loads late
    assert page.foreign == [], "requests left"
    assert page.dialogs == [], "scripts ran"


def test_payload_list_has_sixty_entries() -> None:
    assert len(set(PAYLOADS)) == 60


def test_check_detects_scripts_and_requests(site: People, context: Any) -> None:
    """The watch itself: the same payloads in a page of ours without policy and escaping do run and
    do ask.
    """
    page = context.new_page()
    foreign: list[str] = []
    dialogs: list[str] = []
    page.on(
        "request",
        lambda request: foreign.append(request.url) if "evil.example" in request.url else None,
    )
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.set_content(
        "".join(
            f"<div>{payload}</div>"
            for payload in PAYLOADS
            if "refresh" not in payload and "<base" not in payload
        )
    )
    until(lambda: bool(foreign) and bool(dialogs), "a script and a request")


def test_no_payload_runs_on_the_annotate_page(
    site: People, watched: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    n = len(PAYLOADS)
    site.publish(
        [(PAYLOADS[i], PAYLOADS[(i + 1) % n], f"{PAYLOADS[(i + 2) % n]} {i}") for i in range(n)]
    )
    site.rules(repeat_share=0, prefetch=20)
    ann = site.add("ann@example.org", name=PAYLOADS[0])
    log_in(watched, site, ann)
    for i in range(n):
        wait_for_card(watched)
        assert watched.locator("#desk .text").locator(ALIVE).count() == 0
        if i % 7 == 0:
            press(watched, "m")
            assert watched.locator("#desk .text").locator(ALIVE).count() == 0
            press(watched, "m")
        before = read_card(watched)
        press(watched, "159"[i % 3])
        until(
            lambda before=before: not watched.is_visible("#desk") or read_card(watched) != before,
            "the next comparison",
        )
    all_sent(watched)  # asks the page, so that the watch above lets its requests through
    assert len(site.votes(ann)) == n
    tell(watched, f"{n} payloads in prompt and both completions on the annotate page", capsys)


def tell(watched: Any, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    watched.wait_for_timeout(300)  # for what loads late
    with capsys.disabled():
        print(f"\n{what}: {len(watched.dialogs)} scripts ran, {len(watched.foreign)} requests left")


def test_raw_view_shows_payloads_verbatim(site: People, watched: Any) -> None:
    payloads = PAYLOADS[20:23]
    site.publish([(payloads[0], payloads[1], payloads[2])])
    log_in(watched, site, site.add("ann@example.org"))
    wait_for_card(watched)
    press(watched, "m")
    assert {watched.text_content("#left"), watched.text_content("#right")} == {
        payloads[1],
        payloads[2],
    }
    assert watched.text_content("#prompt") == payloads[0]


def test_no_payload_runs_on_any_other_page(
    site: People, watched: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    n = len(PAYLOADS)
    admin = site.add("admin@example.org", Role.ADMIN, name=f"Ada {PAYLOADS[1]}")
    people = [
        site.add(f"p{i}@example.org", name=payload[:200]) for i, payload in enumerate(PAYLOADS)
    ]
    ids = site.publish(
        [(PAYLOADS[i], PAYLOADS[(i + 1) % n], f"{PAYLOADS[(i + 2) % n]} {i}") for i in range(n)],
        overlap=2,
    )
    for i, (c, user) in enumerate(zip(ids, people, strict=True)):
        for who in (user, people[i - 1]):
            site.store.votes.cast(
                NewVote(
                    comparison_id=c,
                    annotator_id=who.user_id,
                    annotator_kind=AnnotatorKind.HUMAN,
                    choice=Choice.A if who is user else Choice.B,
                    reason=PAYLOADS[i],
                    voted_at=utc_now(),
                    origin="api",
                    idempotency_key=f"{c}/{who.user_id}",
                )
            )
        site.store.feedback.add(
            NewFeedback(
                kind="detailed",
                prompt=PAYLOADS[i],
                completion=PAYLOADS[i - 1],
                text=PAYLOADS[i - 2],
                session_id=PAYLOADS[i][:200],
                tags=(PAYLOADS[i],),
            ),
            created_by=user.user_id,
        )
    site.store.guidelines.add("\n\n".join(PAYLOADS), after=0, actor="test")
    log_in(watched, site, admin, "/progress")
    paths = [
        *PAGES,
        "/votes?q=script",
        "/consensus?state=all",
        "/consensus?method=joint_model",
        "/calibration/pairs?bin=0.55",
        "/nowhere?<script>alert(1)</script>",
        "/votes?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E",
        "/login?next=javascript:alert(1)&token=%22%3E%3Cscript%3Ealert(1)%3C/script%3E",
        *(f"/comparisons/{c}" for c in ids[::6]),
    ]
    for path in paths:
        watched.goto(site.url + path)
        assert (
            watched.locator(":is(.text, .quoted, .facts)")
            .locator("script, img, iframe, object, embed, [onerror], [onload]")
            .count()
            == 0
        )
        for more in watched.get_by_role("link", name="More").all()[:1]:
            rows = watched.locator(":is(.list, .list-more) > *")
            n_rows = rows.count()
            more.click()  # htmx puts the next part in
            until(
                lambda rows=rows, n_rows=n_rows: rows.count() > n_rows,
                "the next part of the list",
            )
    watched.goto(site.url + "/guidelines")
    assert "<script>alert(1)</script>" in watched.inner_text("main")
    tell(
        watched,
        f"{n} payloads in prompts, completions, reasons, names, guidelines and feedback on "
        f"{len(paths)} pages",
        capsys,
    )
