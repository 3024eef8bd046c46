"""What annotators cannot know: which cards are hidden ones, whose text they read, what others
said.
"""

import json
import uuid

from tests.web.conftest import Web


def judge(client, n: int) -> list[tuple[dict, dict]]:
    """Lease one card at a time and vote: (lease, receipt)."""
    exchanges = []
    for _ in range(n):
        lease = client.post("/cards:lease", json={"n": 1}).json()
        if not lease["cards"]:
            break
        card = lease["cards"][0]
        answer = client.post(
            "/votes",
            json={"card_id": card["card_id"], "choice": "a"},
            headers={"Idempotency-Key": str(uuid.uuid4())},
        )
        assert answer.status_code == 201, answer.text
        exchanges.append((lease, answer.json()))
    return exchanges


def shape(value: object) -> object:
    """All that can be told of a value but its text: types and names, of texts that they are
    some.
    """
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return type(value).__name__


def test_hidden_cards_look_like_any_other(web: Web):
    web.rule(repeat_share=0.2, repeat_after=5, gold_share=0.2)
    web.publish(60)
    web.publish(30, prefix="g", offer=False, gold="a")
    ann = web.client("annotator")
    exchanges = judge(ann, 60)
    kinds = [web.store.cards.get(lease["cards"][0]["card_id"]).kind.value for lease, _ in exchanges]
    assert {"normal", "repeat", "gold"} == set(kinds)
    shapes = {
        kind: {
            json.dumps([shape(lease), shape(receipt)], sort_keys=True)
            for k, (lease, receipt) in zip(kinds, exchanges, strict=True)
            if k == kind
        }
        for kind in kinds
    }
    assert shapes["normal"] == shapes["repeat"] == shapes["gold"]
    lengths = {len(lease["cards"][0]["card_id"]) for lease, _ in exchanges}
    assert lengths == {20}
    # Neither do one's own votes tell afterwards, nor the statistics of the day.
    own = ann.get("/me/votes", params={"limit": 200}).json()["items"]
    assert len({json.dumps(shape(item), sort_keys=True) for item in own}) == 1
    hidden = {"kind", "gold", "pass_no", "comparison_id", "offered_to", "is_swapped"}
    assert not hidden & set(own[0])
    figures = ann.get("/me/statistics").json()
    assert (figures["votes_today"], figures["repeats"]["n"], figures["gold"]["n"]) == (60, 0, 0)


def test_remaining_count_does_not_reveal_hidden_cards(web: Web):
    """It stands still while cards are leased ahead and falls with every tenth vote, whatever their
    kinds.
    """
    web.rule(repeat_share=0.2, repeat_after=5, gold_share=0.2)
    web.publish(70)
    web.publish(30, prefix="g", offer=False, gold="a")
    ann = web.client("annotator")
    assert {lease["remaining"] for lease, _ in judge(ann, 10)} == {70}
    ahead = [ann.post("/cards:lease", json={"n": n}).json() for n in range(1, 21)]
    assert [lease["remaining"] for lease in ahead] == [60] * 20
    assert len({web.store.cards.get(card["card_id"]).kind for card in ahead[-1]["cards"]}) > 1
    exchanges = judge(ann, 30)
    n_remaining = [lease["remaining"] for lease, _ in exchanges]
    assert n_remaining == [60] * 10 + [50] * 10 + [40] * 10
    ids = [lease["cards"][0]["card_id"] for lease, _ in exchanges]
    assert len({web.store.cards.get(card_id).kind for card_id in ids}) == 3


def test_returned_cards_come_back_unchanged(web: Web):
    """As a page does that is loaded anew."""
    web.rule(repeat_share=0.2, repeat_after=5, gold_share=0.2)
    web.publish(70)
    web.publish(30, prefix="g", offer=False, gold="a")
    ann = web.client("annotator")
    kinds = set()
    for _ in range(30):
        (card,) = ann.post("/cards:lease", json={"n": 1}).json()["cards"]
        assert ann.post(f"/cards/{card['card_id']}:release").status_code == 204
        (again,) = ann.post("/cards:lease", json={"n": 1}).json()["cards"]
        assert {**again, "leased_until": ""} == {**card, "leased_until": ""}
        kinds.add(web.store.cards.get(card["card_id"]).kind)
        judge(ann, 1)
    assert len(kinds) == 3


def test_id_place_and_time_do_not_reveal_hidden_cards(web: Web):
    """Shapes are the same; so are the values as far as chance goes. By the app's own seed, drawn
    anew: a bound that fails once in 10^6.
    """
    web.rule(repeat_share=0.25, repeat_after=3, gold_share=0.25, seed=20_260_727)
    web.publish(240)
    web.publish(80, prefix="g", offer=False, gold="a")
    ann = web.client("annotator")
    hidden: list[bool] = []
    signs: dict[str, list[float]] = {
        "id": [],
        "end of id": [],
        "place in the lease": [],
        "vote": [],
        "length": [],
    }
    while len(hidden) < 360:
        cards = ann.post("/cards:lease", json={"n": 6}).json()["cards"]
        assert len({card["leased_until"] for card in cards}) == 1
        assert len({tuple(card) for card in cards}) == 1  # the same fields in the same order
        for place, card in enumerate(cards):
            body = {"card_id": card["card_id"], "choice": "a"}
            receipt = ann.post(
                "/votes", json=body, headers={"Idempotency-Key": str(uuid.uuid4())}
            ).json()
            assert set(receipt["card_id"] + receipt["vote_id"]) <= set("0123456789abcdef")
            hidden.append(web.store.cards.get(card["card_id"]).kind.value != "normal")
            signs["id"].append(int(card["card_id"][:8], 16))
            signs["end of id"].append(int(card["card_id"][-8:], 16))
            signs["place in the lease"].append(place)
            signs["vote"].append(int(receipt["vote_id"][:8], 16))
            signs["length"].append(len(json.dumps(receipt)))
    n, share = len(hidden), sum(hidden) / len(hidden)
    assert 0.3 < share < 0.6
    for name, values in signs.items():
        mean = sum(values) / n
        spread = sum((value - mean) ** 2 for value in values) * n * share * (1 - share)
        together = sum(
            (value - mean) * (is_hidden - share)
            for value, is_hidden in zip(values, hidden, strict=True)
        )
        assert abs(together) <= 4.9 * (spread / n) ** 0.5, (name, together / (spread or 1) ** 0.5)
    # What one reads of one's own afterwards stands in the order in which it was judged, hidden or
    # not.
    own = [item["card_id"] for item in ann.get("/me/votes", params={"limit": 200}).json()["items"]]
    assert own == [
        vote.card_id for vote in web.store.votes.page(annotator_id=ann.user.user_id, limit=200)
    ]


def test_own_corrections_are_not_dealt(web: Web):
    ann, bob = web.client("annotator"), web.client("annotator")
    correction = {"kind": "correction", "prompt": "p", "completion": "bad", "correction": "good"}
    feedback = ann.post("/feedback", json=correction).json()
    web.store.cards.offer([feedback["comparison_id"]], overlap=1)
    assert ann.post("/cards:lease").json()["cards"] == []
    assert len(bob.post("/cards:lease").json()["cards"]) == 1
