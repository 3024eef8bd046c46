"""outbox.js by itself, in Chromium: a scripted server answers, IndexedDB keeps; no web app, no
page.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.browser.page_actions import until

WEB = Path(__file__).resolve().parents[2] / "rlhf_pipeline" / "web"
ORIGIN = "http://localhost:9"  # nobody listens there: each request is answered from WEB
OPEN = """async (user) => {
    const { Outbox } = await import("/static/annotate/outbox.js");
    Object.assign(window, { rules: [], sent: [], told: [] });
    window.fetch = async (url, { headers, body }) => {
        const asked = {
            ...JSON.parse(body), key: headers["Idempotency-Key"], user: headers["X-Annotator"] };
        const rule = rules.find(
            (one) => one.times !== 0 && (!one.keys || one.keys.includes(asked.key)));
        if (rule?.times) rule.times -= 1;
        if (rule?.isDead) throw new TypeError("no network");
        const status = rule?.status ?? 201;
        sent.push({ ...asked, status });
        const answer = status === 201
            ? { vote_id: `vote of ${asked.key}` }
            : { type: rule.type ?? "about:blank", detail: "Why." };
        return new Response(JSON.stringify(answer), { status, headers: rule?.headers ?? {} });
    };
    window.box = new Outbox(user, { shortest: 5, longest: 20 });
    for (const name of ["recorded", "refused", "discarded"])
        box.addEventListener(name, ({ detail: { entry, dependants, isTakenBack } }) =>
            told.push({
                name, key: entry.key, dependants: (dependants ?? []).map((one) => one.key),
                isTakenBack: isTakenBack ?? false }));
    await box.open();
}"""
FAIL_TWICE = """(name) => {
    const usual = IDBObjectStore.prototype[name];
    window.failures = 0;
    IDBObjectStore.prototype[name] = function (...given) {
        if (window.failures < 2) {
            window.failures += 1;
            throw new DOMException("for a moment", "UnknownError");
        }
        return usual.apply(this, given);
    };
}"""


@dataclass
class Box:
    """One tab with an outbox of `user`."""

    page: Any
    user: str = "ann"

    def open(self) -> "Box":
        self.page.goto(ORIGIN)
        self.page.evaluate(OPEN, self.user)
        return self

    def answer(self, **rule: Any) -> None:
        """From now on, for the entries `keys` (default: all), the next `times` (default:
        always).
        """
        self.page.evaluate("(rule) => rules.unshift(rule)", rule)

    def mend(self) -> None:
        self.page.evaluate("rules.length = 0; box.hurry()")

    def add(self, key: str, *, after: str | None = None, is_undo: bool = False) -> None:
        body = {"card_id": f"card of {key}", "choice": "skip" if is_undo else "a"}
        self.page.evaluate(
            "(entry) => box.add(entry)",
            {"key": key, "user": self.user, "after": after, "isUndo": is_undo, "body": body},
        )

    def undo(self, key: str, *, of: str) -> None:
        self.add(key, after=of, is_undo=True)

    @property
    def unsent(self) -> list[str]:
        return list(self.page.evaluate("box.unsent.map((entry) => entry.key)"))

    @property
    def recorded(self) -> list[str]:
        """Keys the server took, in the order it took them."""
        return [
            request["key"] for request in self.page.evaluate("sent") if request["status"] == 201
        ]

    def get(self, name: str) -> Any:
        return self.page.evaluate(f"box.{name}")

    def wait_for(self, *unsent: str) -> None:
        """Until just these entries wait, and those that can be sent were."""
        until(
            lambda: self.unsent == list(unsent) and not self.page.evaluate("box.draining !== null"),
            f"{unsent} to be all that waits",
        )


@pytest.fixture
def tab(context: Any) -> Any:
    """`tab()` or `tab("bo")`: another tab of one browser."""

    def serve(route: Any) -> None:
        path = WEB / route.request.url.removeprefix(f"{ORIGIN}/static/")
        if path.is_file():
            route.fulfill(path=path, content_type="text/javascript")
        else:
            route.fulfill(body="<!doctype html>", content_type="text/html")

    context.route(f"{ORIGIN}/**", serve)
    return lambda user="ann": Box(context.new_page(), user).open()


@pytest.fixture
def box(tab: Any) -> Box:
    return tab()


def test_votes_are_sent_in_casting_order(box: Box) -> None:
    box.answer(isDead=True)
    for key in "123":
        box.add(key)
    until(lambda: box.get("isOffline"), "the network to be missed")
    assert box.unsent == ["1", "2", "3"]
    box.mend()
    box.wait_for()
    assert box.recorded == ["1", "2", "3"]
    assert not box.get("isOffline")


@pytest.mark.parametrize("status", [408, 429, 503])
def test_busy_server_is_retried(box: Box, status: int) -> None:
    box.answer(status=status, times=2)
    box.add("1")
    box.wait_for()
    assert [request["status"] for request in box.page.evaluate("sent")] == [status, status, 201]


@pytest.mark.parametrize(
    ("status", "kind"), [(401, "about:blank"), (403, "urn:rlhf:problem:other_login")]
)
def test_votes_wait_for_their_login(box: Box, status: int, kind: str) -> None:
    box.answer(status=status, type=kind)
    box.add("1")
    until(lambda: box.get("needsLogin"), "a login to be asked for")
    assert box.get("isOtherLogin") == (status == 403)
    assert box.unsent == ["1"]
    box.page.evaluate("rules.length = 0; box.welcome()")
    box.wait_for()
    assert not box.get("needsLogin")


def test_votes_of_another_login_are_counted_and_not_sent(tab: Any) -> None:
    anns = tab("ann")
    anns.answer(isDead=True)
    anns.add("1")
    anns.page.close()
    bos = tab("bo")
    bos.add("2")
    bos.wait_for()
    assert (bos.recorded, bos.get("others")) == (["2"], 1)
    again = tab("ann")
    again.wait_for()
    assert again.recorded == ["1"]


@pytest.mark.parametrize("status", [403, 404, 410])
def test_rejected_vote_does_not_block_others(box: Box, status: int) -> None:
    box.answer(keys=["1"], status=status)
    box.add("1")
    box.undo("2", of="1")
    box.add("3", after="2")
    box.add("4")
    box.wait_for("1", "2", "3")
    assert box.recorded == ["4"]
    assert box.get("reason") == "Why."
    assert box.page.evaluate("[...box.refusals]") == [["1", {"status": status, "detail": "Why."}]]
    assert not box.get("needsLogin")
    box.mend()
    box.wait_for()
    assert box.recorded == ["4", "1", "2", "3"]


def test_late_replacement_vote_is_kept(box: Box) -> None:
    box.add("1")
    box.wait_for()
    box.answer(keys=["2", "3"], status=409)
    box.undo("2", of="1")
    box.add("3", after="2")
    box.wait_for("2", "3")
    assert box.page.evaluate("[...box.refusals.keys()]") == ["2"]


def test_undo_names_its_vote(box: Box) -> None:
    box.add("1")
    box.wait_for()
    box.undo("2", of="1")
    box.wait_for()
    assert [request["supersedes"] for request in box.page.evaluate("sent")] == [None, "vote of 1"]


def test_discarded_undo_discards_its_replacement(box: Box) -> None:
    box.add("1")
    box.wait_for()
    box.answer(keys=["2"], status=404)
    for step in (
        lambda: box.undo("2", of="1"),
        lambda: box.add("3", after="2"),
        lambda: box.undo("4", of="3"),
        lambda: box.add("5"),
    ):
        step()
    box.wait_for("2", "3", "4")
    box.page.evaluate("box.discard('2')")
    box.wait_for()
    assert box.recorded == ["1", "5"]
    discarded = [event for event in box.page.evaluate("told") if event["name"] == "discarded"]
    assert [(event["key"], event["isTakenBack"]) for event in discarded] == [
        ("4", False),
        ("3", True),
        ("2", False),
    ]
    assert discarded[-1]["dependants"] == ["3", "4"]


def test_outbox_file_excludes_undone_votes(box: Box) -> None:
    box.add("sent")
    box.wait_for()
    box.answer(isDead=True)
    box.undo("undo of sent", of="sent")
    box.add("anew", after="undo of sent")
    box.add("taken back")
    box.undo("its undo", of="taken back")
    box.add("last")
    until(lambda: len(box.unsent) == 5, "all five")
    votes = box.page.evaluate("box.votes()")
    assert [(vote["idempotency_key"], vote["supersedes"]) for vote in votes] == [
        ("undo of sent", "vote of sent"), ("anew", None), ("last", None),
    ]  # fmt: skip


@pytest.mark.parametrize("method", ["getAll", "get", "delete", "put"])
def test_failing_storage_is_retried(box: Box, method: str) -> None:
    box.add("1")
    box.wait_for()
    box.page.evaluate(FAIL_TWICE, method)
    box.undo("2", of="1")
    until(lambda: box.page.evaluate("window.failures") == 2, "two failures")
    box.wait_for()
    assert box.recorded[-1] == "2"


def test_full_device_keeps_votes_in_the_tab(box: Box) -> None:
    box.add("1")
    box.wait_for()
    box.page.evaluate(
        "() => { IDBObjectStore.prototype.add = () => { throw new DOMException('full', "
        "'QuotaExceededError'); }; }"
    )
    box.undo("2", of="1")
    box.wait_for()
    assert not box.get("isDurable")
    assert box.page.evaluate("sent").pop()["supersedes"] == "vote of 1"


def test_two_tabs_send_one_outbox_once(tab: Any) -> None:
    first, two = tab(), tab()
    for each in (first, two):
        each.answer(isDead=True)
    first.add("1")
    two.add("2")
    for each in (first, two):
        each.mend()
    first.wait_for()
    two.wait_for()
    assert sorted(first.recorded + two.recorded) == ["1", "2"]
