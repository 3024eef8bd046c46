"""Votes through the API: one key, one row; what was answered survives a kill."""

from concurrent.futures import ThreadPoolExecutor

from tests.acceptance.home import Person, Server, rows


def lease(person: Person, n: int = 1) -> list[dict[str, str]]:
    answer = person.api.post("/api/v1/assignments:lease", json={"n": n})
    assert answer.status_code == 200, answer.text
    cards: list[dict[str, str]] = answer.json()["cards"]
    return cards


def test_fifty_posts_with_one_key_are_one_vote(site: Server) -> None:
    ann = site.add("annotator")
    [card] = lease(ann)
    body = {"assignment_id": card["assignment_id"], "choice": "a", "strength": 2}

    def post(_: int) -> tuple[int, str]:
        answer = ann.api.post("/api/v1/votes", json=body, headers={"Idempotency-Key": "one"})
        return answer.status_code, answer.json().get("vote_id", "")

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(post, range(50)))
    assert {status for status, _ in answers} == {201}
    [vote] = rows(site.admin, "votes", annotator_id=ann.user_id)
    assert {vote_id for _, vote_id in answers} == {vote["vote_id"]}
