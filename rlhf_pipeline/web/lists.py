"""Lists of votes, feedback, comparisons, users and tokens as pages and API show them. Knows the
store's pages and what each reader may see; knows no route.
"""

from typing import Any

import pandas as pd

from rlhf_pipeline.api_types.accounts import TokenOut, UserOut
from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.api_types.comparisons import ComparisonOut
from rlhf_pipeline.api_types.votes import OwnVote, VoteOut
from rlhf_pipeline.errors import NotFound
from rlhf_pipeline.records import Feedback, User, VoteDetails
from rlhf_pipeline.store.vote_lists import ListedVote
from rlhf_pipeline.votes.quality import Mark
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import blind_reader_id, filter_unjudged, hides_answers
from rlhf_pipeline.web.identity import names_its_maker
from rlhf_pipeline.web.pagination import cursor_problem, make_cursor, parse_cursor
from rlhf_pipeline.web.problems import Problem
from rlhf_pipeline.web.quality import check_mark
from rlhf_pipeline.web.site import Site
from rlhf_pipeline.web.votes import swap_choice, swap_sides

NOTHING = VoteDetails()
ANSWERS = ("model_version_a", "model_version_b", "gold")
# many judgements, or a card on a comparison that was never offered, reveal a known answer
SLOTS = ("n_slots", "n_done")


def votes(
    site: Site,
    principal: Principal,
    only: dict[str, str | None],
    words: str | None,
    *,
    mark: Mark | None = None,
    cursor: str | None,
    limit: int,
) -> Page[VoteOut]:
    """Newest first, without those that the reader may not see yet, of which `next` tells nothing
    either.

    Raises Problem 422 for words beside other filters, and for a mark beside others than the
    annotator; 403 as `check_mark`.
    """
    place = parse_cursor(cursor, int)
    before = place[0] if place else None
    seen_by = blind_reader_id(principal)
    if mark is not None:
        if words or only.get("day") or only.get("comparison_id"):
            wrong = [("query.mark", "stands with annotator_id alone")]
            raise Problem(
                422,
                "mark goes with annotator_id alone: leave the other filters out.",
                kind="invalid",
                errors=wrong,
            )
        check_mark(principal, mark)
        seqs = site.quality_counters.find_marked(
            mark, only.get("annotator_id"), before_seq=before, limit=limit, seen_by=seen_by
        )
        found, following = (
            site.store.votes.with_seqs(seqs),
            seqs[-1] if len(seqs) == limit else None,
        )
        # the marks may have been counted before the reader took a judgement back
        if seen_by is not None:
            hidden = filter_unjudged(site, principal, [vote.comparison_id for vote in found])
            found = [
                vote
                for vote in found
                if vote.comparison_id not in hidden or vote.annotator_id == seen_by
            ]
    elif words:
        if any(only.values()):
            raise Problem(
                422,
                "q searches all votes: leave the other filters out.",
                kind="invalid",
                errors=[("query.q", "stands alone")],
            )
        found, following = site.store.votes.search(
            words, before_seq=before, seen_by=seen_by, limit=limit
        )
    else:
        found = site.store.votes.page(before_seq=before, seen_by=seen_by, limit=limit, **only)
        following = found[-1].seq if len(found) == limit else None
    items = [_build_vote(vote) for vote in found]
    return Page(items=items, next=make_cursor(following) if following else None)


def feedback(
    site: Site,
    principal: Principal,
    *,
    kind: str | None = None,
    session_id: str | None = None,
    created_by: str | None = None,
    cursor: str | None,
    limit: int,
) -> Page[Feedback]:
    """Newest first, without the corrections that the reader may not see yet, of which `next` tells
    nothing either.
    """
    place = parse_cursor(cursor, int)
    found = site.store.feedback.page(
        before_id=place[0] if place else None,
        kind=kind,
        session_id=session_id,
        created_by=created_by,
        seen_by=blind_reader_id(principal),
        limit=limit,
    )
    return Page(
        items=found, next=make_cursor(found[-1].feedback_id) if len(found) == limit else None
    )


def feedback_entry(site: Site, principal: Principal, feedback_id: int) -> Feedback:
    """Raises Problem 404, and in the same words for a correction of a comparison that the reader
    has not judged yet.
    """
    found = site.store.feedback.page(
        before_id=feedback_id + 1, seen_by=blind_reader_id(principal), limit=1
    )
    if not found or found[0].feedback_id != feedback_id:
        raise Problem(404, f"There is no feedback {feedback_id} here.", kind="not_found")
    return found[0]


def _build_vote(vote: ListedVote) -> VoteOut:
    return VoteOut(
        **{
            name: getattr(vote, name)
            for name in VoteOut.model_fields
            if name in ListedVote.model_fields
        },
        **_detail_fields(vote.details or NOTHING),
    )


def _detail_fields(details: VoteDetails) -> dict[str, Any]:
    return {
        "dimensions": details.dimensions,
        "highlights": list(details.highlights),
        "flags": list(details.flags),
    }


def own_votes(site: Site, annotator_id: str, *, cursor: str | None, limit: int) -> Page[OwnVote]:
    """Newest first, sides as they stood on the cards; nothing that tells two cards of one
    comparison.
    """
    place = parse_cursor(cursor, int)
    found = site.store.votes.page(
        annotator_id=annotator_id, before_seq=place[0] if place else None, limit=limit
    )
    items = []
    for vote in found:
        items.append(
            OwnVote(
                **{name: getattr(vote, name) for name in OWN_AS_CAST},
                choice=swap_choice(vote.is_swapped, vote.choice),
                is_superseded=vote.is_superseded,
                **_detail_fields(swap_sides(vote.is_swapped, vote.details or NOTHING)),
            )
        )
    return Page(items=items, next=make_cursor(found[-1].seq) if len(found) == limit else None)


def users(site: Site, *, cursor: str | None, limit: int) -> Page[UserOut]:
    """By e-mail address. A cursor is the last one's id: addresses stand in no log of addresses that
    were asked for.
    """
    place = parse_cursor(cursor, str)
    try:
        found = site.store.users.page(after=place[0] if place else None, limit=limit)
    except NotFound:
        raise cursor_problem() from None
    return Page(
        items=[user_out(user) for user in found],
        next=make_cursor(found[-1].user_id) if len(found) == limit else None,
    )


def user_out(user: User) -> UserOut:
    return UserOut.model_validate(user.model_dump())


def own_tokens(site: Site, user_id: str, *, cursor: str | None, limit: int) -> Page[TokenOut]:
    """API tokens, newest first, those that ended too."""
    place = parse_cursor(cursor, str)
    try:
        found = site.store.tokens.of_user(
            user_id, kind="api", before=place[0] if place else None, limit=limit
        )
    except NotFound:
        raise cursor_problem() from None
    items = [TokenOut.model_validate(token.model_dump()) for token in found]
    return Page(items=items, next=make_cursor(found[-1].token_id) if len(found) == limit else None)


OWN_AS_CAST = (
    "vote_id",
    "assignment_id",
    "strength",
    "reason",
    "stated_confidence",
    "duration_s",
    "voted_at",
    "received_at",
    "supersedes",
)


def comparisons(
    site: Site, principal: Principal, *, category: str | None = None, cursor: str | None, limit: int
) -> Page[ComparisonOut]:
    """Newest day first; of one category without those whose category the reader may not know yet,
    of which `next` tells nothing either.

    A cursor is the last one's id: a correction has the place of another comparison, so places would
    reveal it.
    """
    place = _place_of(site, cursor)
    judged_by = None if category is None else blind_reader_id(principal)
    found = site.store.comparisons.page(
        before=place, category=category, judged_by=judged_by, limit=limit
    )
    rows = plain_rows(found)
    following = make_cursor(rows[-1]["comparison_id"]) if len(rows) == limit else None
    if category is not None:
        hidden = filter_unjudged(site, principal, [row["comparison_id"] for row in rows])
        rows = [row for row in rows if row["comparison_id"] not in hidden]
    return Page(items=_build_comparisons(site, principal, rows), next=following)


def _place_of(site: Site, cursor: str | None) -> tuple[str, int, str] | None:
    """Of the comparison that a cursor names, in the order of the list. Raises Problem 422."""
    place = parse_cursor(cursor, str)
    if place is None:
        return None
    rows = plain_rows(site.store.comparisons.with_ids(place))
    if not rows:
        raise cursor_problem()
    return rows[0]["day"], rows[0]["position"], rows[0]["comparison_id"]


def comparison(site: Site, principal: Principal, comparison_id: str) -> ComparisonOut:
    """Raises Problem 404."""
    rows = plain_rows(site.store.comparisons.with_ids([comparison_id]))
    if not rows:
        raise Problem(404, f"There is no comparison {comparison_id!r} here.", kind="not_found")
    return _build_comparisons(site, principal, rows)[0]


def _build_comparisons(
    site: Site, principal: Principal, rows: list[dict[str, Any]]
) -> list[ComparisonOut]:
    ids = [row["comparison_id"] for row in rows]
    texts, slots = site.store.comparisons.texts(ids), site.store.assignments.count_slots(ids)
    hidden: dict[str, None] = dict.fromkeys(ANSWERS) if hides_answers(principal) else {}
    if blind_reader_id(principal) is not None:
        hidden |= dict.fromkeys(SLOTS)
    # Each would tell which of them is a correction, and so which text its author preferred.
    unsorted, untold = (
        filter_unjudged(site, principal, ids),
        {"source": None, "category": None, "prompt_id": None},
    )
    found = []
    for row in rows:
        n_slots, n_done = slots.get(row["comparison_id"], (0, 0))
        more = {
            "names_maker": names_its_maker(texts[row["comparison_id"]]),
            "n_slots": n_slots,
            "n_done": n_done,
            **hidden,
        }
        more |= untold if row["comparison_id"] in unsorted else {}
        found.append(
            ComparisonOut.model_validate(
                {
                    name: more[name] if name in more else row[name]
                    for name in ComparisonOut.model_fields
                }
            )
        )
    return found


def plain_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a frame with None for what is missing."""
    columns = {
        name: frame[name].astype(object).where(frame[name].notna(), None).tolist()
        for name in frame.columns
    }
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
