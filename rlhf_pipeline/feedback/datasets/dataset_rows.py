"""Makes the rows of a data set from preference pairs, hand-made pairs and feedback.

A preference becomes one row to imitate in an `sft` set, and two judged rows in an `unpaired` set.
Approved feedback becomes rows by these rules:

- A correction prefers the corrected text to the completion, at full strength.
- Ratings of the completions of one prompt: each of two completions with different mean ratings
  makes a preference, whose strength is the difference over 4, the largest possible.
- Thumbs up or down, and ratings of 4 and more or 2 and less, judge their completion. What they like
  is also imitated; what they dislike is in unpaired sets alone.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any

import pandas as pd
from pydantic import ValidationError

from rlhf_pipeline.core.conversations import Message, prompt_id, read_messages, write_prompt
from rlhf_pipeline.core.curation import CuratedPair, DatasetType, PairTexts, VoteQuery
from rlhf_pipeline.core.frames import DATASET_ROWS, PREFERENCE_PAIRS, check_frame, concat
from rlhf_pipeline.core.records import Feedback, content_id

RATING_RANGE = 4.0  # from 1 to 5
LEAST_LIKED, MOST_DISLIKED = 4.0, 2.0  # ratings
COLUMNS = list(DATASET_ROWS.columns)
Row = dict[str, Any]


def select_vote_pairs(
    pairs: pd.DataFrame, query: VoteQuery, comparison_ids: Iterable[str] | None = None
) -> pd.DataFrame:
    """The PREFERENCE_PAIRS that a query chooses, of `comparison_ids` where they are given. Pairs of
    the calib and test split measure models and are never chosen, nor are ties.
    """
    checked = check_frame(pairs, PREFERENCE_PAIRS)
    chosen = (
        (checked["split"] == "train")
        & (checked["agreement"] > 0.5)
        & (checked["agreement"] >= query.min_agreement)
        & (checked["n_votes"] >= query.min_votes)
    )
    if query.categories:
        chosen &= checked["category"].isin(query.categories)
    if query.since:
        chosen &= checked["day"] >= query.since.isoformat()
    if query.until:
        chosen &= checked["day"] <= query.until.isoformat()
    if comparison_ids is not None:
        chosen &= checked["comparison_id"].isin(set(comparison_ids))
    return checked[chosen]


def build_rows(
    kind: DatasetType,
    vote_pairs: pd.DataFrame,
    curated: Sequence[CuratedPair] = (),
    feedback: Sequence[Feedback] = (),
) -> pd.DataFrame:
    """DATASET_ROWS of a data set of type `kind`, by row id; the order of the inputs is irrelevant.

    A correction in `feedback` replaces the pair of its own comparison. Rejected hand-made pairs and
    feedback without texts give no row.
    """
    own_comparisons = {entry.comparison_id for entry in feedback if entry.comparison_id}
    others = vote_pairs[~vote_pairs["comparison_id"].isin(own_comparisons)]
    by_hand = (
        *_rows_of_curated(curated),
        *_rows_of_corrections(feedback),
        *_rows_of_ratings(feedback),
    )
    frames = [_select_sides(frame, kind) for frame in (_frame_of_votes(others), _frame_of(by_hand))]
    if kind != "preference":
        judgements = _frame_of(_rows_of_judgements(feedback))
        if kind == "sft":
            judgements = judgements[judgements["label"].eq(True)].assign(label=None)
        frames.append(judgements)
    rows = concat(frames, DATASET_ROWS).drop_duplicates("row_id")
    return rows.sort_values("row_id", ignore_index=True)


def compare_rows(old: pd.DataFrame, new: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The DATASET_ROWS that `new` has and `old` has not, and those that it lacks. A row with other
    texts or another label is in both; other votes on it do not count.
    """
    texts = ["row_id", "prompt", "completion", "rejected", "label"]
    keys_old, keys_new = (pd.MultiIndex.from_frame(f[texts].astype(str)) for f in (old, new))
    return new[~keys_new.isin(keys_old)], old[~keys_old.isin(keys_new)]


def make_feedback_pairs(
    feedback: Sequence[Feedback],
) -> tuple[list[tuple[PairTexts, tuple[int, ...]]], dict[int, str]]:
    """Hand-made pairs of corrections and ratings, each with the ids of its feedback; and by id why
    an entry gives none.
    """
    pairs, used = [], set[int]()
    refused: dict[int, str] = {}
    for row in (*_rows_of_corrections(feedback), *_rows_of_ratings(feedback)):
        ids = tuple(int(source.partition(":")[2]) for source in json.loads(row["sources"]))
        texts = {"chosen": row["completion"], "strength": row["strength"]}
        used |= set(ids)
        try:
            pair = PairTexts(prompt=row["prompt"], rejected=row["rejected"], **texts)
        except ValidationError as cause:
            fault = cause.errors()[0]
            words = (*fault["loc"], fault["msg"].removeprefix("Value error, "))
            refused |= dict.fromkeys(ids, ": ".join(map(str, words)))
        else:
            pairs.append((pair, ids))
    return pairs, refused | {
        entry.feedback_id: "no other rating here is of the same prompt and differs"
        if entry.kind == "rating"
        else f"{entry.kind} prefers nothing; unpaired data sets hold thumbs"
        for entry in feedback
        if entry.feedback_id not in used
    }


def _frame_of(rows: Iterable[Row]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=COLUMNS, dtype=object)


def _frame_of_votes(pairs: pd.DataFrame) -> pd.DataFrame:
    """Column by column: there may be a million."""
    sources = "comparison:" + pairs["comparison_id"]
    same = ("prompt_id", "prompt", "rejected", "agreement", "category", "day")
    return pd.DataFrame(
        {
            "row_id": sources,
            "sources": '["' + sources.str.replace('"', '\\"') + '"]',
            "completion": pairs["chosen"],
            "label": None,
            "strength": pairs["margin"],
            **{name: pairs[name] for name in same},
        }
    )


def _rows_of_curated(pairs: Iterable[CuratedPair]) -> Iterator[Row]:
    for pair in pairs:
        if pair.status == "accepted":
            origin = [f"pair:{pair.pair_id}@{pair.revision}"]
            origin += [f"feedback:{feedback_id}" for feedback_id in pair.feedback_ids]
            documents = [Message(role="document", content=text) for text in pair.context]
            yield _make_row(
                origin,
                write_prompt([*documents, *read_messages(pair.prompt)]),
                pair.chosen,
                rejected=pair.rejected,
                strength=pair.strength,
                day=pair.edited_at.date().isoformat(),
            )


def _rows_of_corrections(feedback: Iterable[Feedback]) -> Iterator[Row]:
    for entry in feedback:
        if entry.kind == "correction":
            yield _make_row(
                [f"feedback:{entry.feedback_id}"],
                str(entry.prompt),
                str(entry.correction),
                rejected=entry.completion,
                strength=1.0,
                day=_day_of(entry),
            )


def _rows_of_ratings(feedback: Iterable[Feedback]) -> Iterator[Row]:
    ratings: dict[str, dict[str, list[Feedback]]] = defaultdict(lambda: defaultdict(list))
    for entry in feedback:
        if entry.kind == "rating" and entry.prompt and entry.completion:
            ratings[entry.prompt][entry.completion].append(entry)
    for prompt, by_completion in ratings.items():
        means = {
            completion: sum(float(entry.value or 0) for entry in entries) / len(entries)
            for completion, entries in by_completion.items()
        }
        for pair in combinations(sorted(means), 2):
            worse, better = sorted(pair, key=lambda completion: means[completion])
            if means[better] > means[worse]:
                entries = by_completion[better] + by_completion[worse]
                yield _make_row(
                    [f"feedback:{n}" for n in sorted(entry.feedback_id for entry in entries)],
                    prompt,
                    better,
                    row_id=f"ratings:{content_id(prompt, better, worse)}",
                    rejected=worse,
                    strength=(means[better] - means[worse]) / RATING_RANGE,
                    day=max(map(_day_of, entries)),
                )


def _rows_of_judgements(feedback: Iterable[Feedback]) -> Iterator[Row]:
    for entry in feedback:
        if entry.kind not in ("thumbs", "rating") or not (entry.prompt and entry.completion):
            continue
        value = float(entry.value or 0)
        is_liked = value == 1 if entry.kind == "thumbs" else value >= LEAST_LIKED
        is_disliked = value == 0 if entry.kind == "thumbs" else value <= MOST_DISLIKED
        if is_liked or is_disliked:
            yield _make_row(
                [f"feedback:{entry.feedback_id}"],
                entry.prompt,
                entry.completion,
                label=is_liked,
                day=_day_of(entry),
            )


def _select_sides(preferences: pd.DataFrame, kind: DatasetType) -> pd.DataFrame:
    """The rows that preferences give: themselves, their completion, or both with their labels."""
    if kind == "preference":
        return preferences
    better = preferences.assign(
        rejected=None, strength=None, label=True if kind == "unpaired" else None
    )
    if kind == "sft":
        return better
    worse = better.assign(
        row_id=better["row_id"] + "/rejected", completion=preferences["rejected"], label=False
    )
    return pd.concat([better, worse], ignore_index=True)


def _make_row(sources: list[str], prompt: str, completion: str, **more: Any) -> Row:
    return {
        "row_id": sources[0],
        "sources": json.dumps(sources),
        "prompt_id": prompt_id(prompt),
        "prompt": prompt,
        "completion": completion,
        **more,
    }


def _day_of(entry: Feedback) -> str:
    return (entry.given_at or entry.created_at).date().isoformat()
