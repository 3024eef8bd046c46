"""Each shape of preference files gives the pairs and votes that its rows mean."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlhf_pipeline.core.conversations import read_messages
from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.row_files import open_rows
from rlhf_pipeline.feedback.datasets.cells import parse_choice
from rlhf_pipeline.feedback.datasets.mapping import ColumnMapping
from rlhf_pipeline.feedback.datasets.preference_files import PreferenceFile, ReadOptions

ASK, GOOD, BAD = "Why is the sky blue?", "Air scatters blue light most.", "It mirrors the sea."
USER = {"role": "user", "content": ASK}


def answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The rows as a file of the path's kind."""
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def open_file(path: Path, *flags: str, words: tuple[str, ...] = (), **options: Any):
    names = ColumnMapping.read(flags, words)
    rows = open_rows(path, encoding=None)
    return PreferenceFile(rows, path.name, names, ReadOptions(**options))


def list_votes(file: PreferenceFile) -> list[tuple[Any, ...]]:
    """(prompt, preferred or a, other or b, verdict) of each vote; the verdict is `wins` for one."""
    votes = []
    assert file.votes is not None
    for row in file.votes:
        cells = row.cells
        choice = parse_choice(cells["choice"], file.names.choices)
        sides = [cells["completion_a"], cells["completion_b"]]
        if choice == "b":
            sides.reverse()
        votes.append((cells["prompt"], *sides, "wins" if choice in ("a", "b") else choice.value))
    return votes


def list_faults(file: PreferenceFile) -> list[str]:
    assert file.pairs is not None
    return [row.fault for row in file.pairs if row.fault is not None]


WINS = [(ASK, GOOD, BAD, "wins")]
HUMAN = f"\n\nHuman: {ASK}\n\nAssistant: "
TREE = {
    "message_id": "m",
    "role": "prompter",
    "text": ASK,
    "replies": [
        {"message_id": "m1", "role": "assistant", "text": BAD, "rank": 1, "replies": []},
        {"message_id": "m0", "role": "assistant", "text": GOOD, "rank": 0, "replies": []},
        {"message_id": "m2", "role": "assistant", "text": "?", "rank": None, "replies": []},
    ],
}
SIDES = {"prompt": ASK, "response_a": GOOD, "response_b": BAD}
# Shape, a row, and the votes of the file with that row.
ROWS: dict[str, tuple[str, dict[str, Any], list[tuple[Any, ...]]]] = {
    "explicit": ("TRL", {"prompt": ASK, "chosen": GOOD, "rejected": BAD}, WINS),
    "implicit": ("TRL", {"chosen": f"{ASK} {GOOD}", "rejected": f"{ASK} {BAD}"}, WINS),
    "conversational": (
        "TRL",
        {"prompt": [USER], "chosen": [answer(GOOD)], "rejected": [answer(BAD)]},
        WINS,
    ),
    "implicit conversational": (
        "TRL",
        {"chosen": [USER, answer(GOOD)], "rejected": [USER, answer(BAD)]},
        WINS,
    ),
    "hh-rlhf": ("hh-rlhf", {"chosen": HUMAN + GOOD, "rejected": HUMAN + BAD}, WINS),
    "ultrafeedback": (
        "UltraFeedback",
        {
            "prompt": ASK,
            "chosen": [USER, answer(GOOD)],
            "rejected": [USER, answer(BAD)],
            "messages": [USER, answer(GOOD)],
            "score_chosen": 8.5,
            "score_rejected": 3.0,
        },
        WINS,
    ),
    "helpsteer": (
        "HelpSteer",
        {"context": [USER], "response1": BAD, "response2": GOOD, "overall_preference": 2},
        WINS,
    ),
    "one-hot arena": (
        "Arena",
        SIDES
        | {"model_a": "m", "model_b": "n", "winner_model_a": 1.0, "winner_model_b": 0.0}
        | {"winner_tie": 0.0},
        WINS,
    ),
    "arena by name": ("Arena", SIDES | {"model_a": "m", "model_b": "n", "winner": "m"}, WINS),
    "arena by word": (
        "Arena",
        SIDES | {"model_a": "m", "model_b": "n", "winner": "tie (bothbad)"},
        [(ASK, GOOD, BAD, "both_bad")],
    ),
    "arena dialogues": (
        "Arena",
        {
            "conversation_a": [USER, answer(GOOD)],
            "conversation_b": [USER, answer(BAD)],
            "model_a": "m",
            "model_b": "n",
            "winner": "model_a",
        },
        WINS,
    ),
    "ranked answers": (
        "several answers",
        {"prompt": ASK, "answers": [{"answer": BAD, "rank": 2}, {"answer": GOOD, "rank": 1}]},
        WINS,
    ),
    "scored answers": (
        "several answers",
        {"prompt": ASK, "responses": [BAD, GOOD], "scores": [1.5, 4]},
        WINS,
    ),
    "labels over answers": (
        "several answers",
        {"prompt": ASK, "responses": [BAD, GOOD], "labels": [False, True]},
        WINS,
    ),
    "best answer": (
        "several answers",
        {"prompt": ASK, "summaries": [{"text": BAD}, {"text": GOOD}], "choice": 1},
        WINS,
    ),
    "tree": ("OpenAssistant", {"message_tree_id": "m", "prompt": TREE}, WINS),
    "argilla": (
        "Argilla",
        {
            "id": "r",
            "fields": {"instruction": ASK, "generation_1": BAD, "generation_2": GOOD},
            "responses": {"preference": [{"value": "generation_2", "user_id": "u"}]},
        },
        WINS,
    ),
    "flat argilla": (
        "Argilla",
        {
            **SIDES,
            "preference.responses": ["response_a"],
            "preference.responses.users": ["u"],
            "preference.responses.status": ["submitted"],
        },
        WINS,
    ),
    "label studio": (
        "Label Studio",
        {
            "id": 5,
            "data": {"prompt": ASK, "answer1": BAD, "answer2": GOOD},
            "annotations": [
                {
                    "completed_by": {"id": 3, "email": "ann@example.org"},
                    "result": [{"type": "pairwise", "value": {"selected": "right"}}],
                }
            ],
        },
        WINS,
    ),
    "label studio min": (
        "Label Studio",
        {"prompt": ASK, "answer1": GOOD, "answer2": BAD, "id": 5, "annotator": 3}
        | {"annotation_id": 1, "lead_time": 3.5, "comparison": "left"},
        WINS,
    ),
    "capitals": ("TRL", {"Prompt": ASK, "Chosen": GOOD, "REJECTED ": BAD}, WINS),
    "capitals in two words": (
        "two completions",
        {"Prompt": ASK, "Response A": GOOD, "Response B": BAD, "Preference": "a"},
        WINS,
    ),
    "shp": (
        "Stanford",
        {"post_id": "q1", "domain": "askphysics_train", "history": ASK, "score_A": 3, "score_B": 9}
        | {"human_ref_A": BAD, "human_ref_B": GOOD, "labels": 0, "score_ratio": 3.0},
        WINS,
    ),
    "openai summaries": (
        "summaries",
        {
            "info": {"id": "t3_a", "post": ASK, "title": "Sky", "subreddit": "physics"},
            "summaries": [{"text": BAD, "policy": "sup1"}, {"text": GOOD, "policy": "ref"}],
            "choice": 1,
            "worker": "w1",
            "split": "valid1",
            "extra": {"confidence": 7},
        },
        WINS,
    ),
    "openai summaries in columns": (
        "summaries",
        {"info.post": ASK, "summaries": [{"text": BAD}, {"text": GOOD}], "choice": 1},
        WINS,
    ),
    "axolotl": (
        "TRL",
        {"messages": [USER], "chosen": answer(GOOD), "rejected": answer(BAD)},
        WINS,
    ),
    "other names of the sides": (
        "TRL",
        {"question": ASK, "response_j": GOOD, "response_k": BAD},
        WINS,
    ),
    "sides that count from 0": (
        "two completions",
        {"prompt": ASK, "response_0": BAD, "response_1": GOOD, "better_response_id": 1},
        WINS,
    ),
    "sides that count from 1": (
        "two completions",
        {"prompt": ASK, "output_1": BAD, "output_2": GOOD, "preference": 2.0},
        WINS,
    ),
    "the winner by the name of its column": (
        "two completions",
        {"prompt": ASK, "Answer A": GOOD, "Answer B": BAD, "choice": "Answer A"},
        WINS,
    ),
    "the older form of a tool call": (
        "TRL",
        {"prompt": ASK, "rejected": [answer(BAD)]}
        | {"chosen": [{"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}]},
        [(ASK, "f({})", BAD, "wins")],
    ),
    "scores beside": ("two completions", SIDES | {"score_a": 2, "score_b": 1}, WINS),
    "our words": ("two completions", SIDES | {"choice": "tie"}, [(ASK, GOOD, BAD, "tie")]),
}


@pytest.mark.parametrize("case", ROWS)
def test_each_shape_is_recognised_and_read(tmp_path, case):
    title, row, votes = ROWS[case]
    file = open_file(write_rows(tmp_path / "f.jsonl", [row]))
    assert title.lower() in file.title.lower()
    assert list_votes(file) == votes
    assert list_faults(file) == []


@pytest.mark.parametrize("case", ["explicit", "one-hot arena", "label studio min", "our words"])
def test_flat_shapes_are_read_from_csv_and_parquet(tmp_path, case):
    title, row, votes = ROWS[case]
    for name in ("f.csv", "f.parquet"):
        file = open_file(write_rows(tmp_path / name, [row]))
        assert title.lower() in file.title.lower()
        assert list_votes(file) == votes


def test_lists_in_csv_cells_are_read_as_messages(tmp_path):
    row = {"chosen": [USER, answer(GOOD)], "rejected": [USER, answer(BAD)]}
    for write in (json.dumps, repr):
        path = write_rows(tmp_path / "f.csv", [{name: write(v) for name, v in row.items()}])
        assert list_votes(open_file(path)) == WINS
    broken = {"prompt": ASK, "chosen": "[{'role' ...]", "rejected": "[{'role' ...]"}
    (fault,) = list_faults(open_file(write_rows(tmp_path / "g.csv", [broken])))
    assert "chosen looks like a list" in fault


def test_a_single_list_among_texts_stays_a_text(tmp_path):
    rows = [{"prompt": f"{ASK} {n}", "chosen": GOOD, "rejected": BAD} for n in range(3)]
    rows[1]["chosen"] = "[1, 2, 3]"
    votes = list_votes(open_file(write_rows(tmp_path / "f.csv", rows)))
    assert votes[1][1] == "[1, 2, 3]"


def test_the_common_beginning_of_dialogues_is_the_prompt(tmp_path):
    begin = "\n\nHuman: Hi\n\nAssistant: Hello!"
    row = {"chosen": begin + HUMAN + GOOD, "rejected": begin + HUMAN + BAD}
    ((prompt, *texts),) = list_votes(open_file(write_rows(tmp_path / "f.jsonl", [row])))
    assert [m.content for m in read_messages(prompt)] == ["Hi", "Hello!", ASK]
    assert texts == [GOOD, BAD, "wins"]


def test_dialogues_that_part_at_the_user_are_divided_before(tmp_path):
    chosen = HUMAN + GOOD + "\n\nHuman: Thanks\n\nAssistant: Yes."
    rejected = HUMAN + GOOD + "\n\nHuman: Really?\n\nAssistant: No."
    file = open_file(write_rows(tmp_path / "f.jsonl", [{"chosen": chosen, "rejected": rejected}]))
    ((prompt, better, _, _),) = list_votes(file)
    assert prompt == ASK
    assert better == f"{GOOD}\n\nHuman: Thanks\n\nAssistant: Yes."
    assert list_faults(file) == []
    assert any("later turns" in note for note in file.notes)


def test_turns_of_an_arena_battle_follow_the_first_prompt(tmp_path):
    row = {
        "prompt": json.dumps([ASK, "Sure?"]),
        "response_a": json.dumps([GOOD, "Yes."]),
        "response_b": json.dumps([BAD, None]),
        "model_a": "m",
        "model_b": "n",
        "winner": "model_b",
    }
    file = open_file(write_rows(tmp_path / "f.csv", [row]))
    tail = "\n\nHuman: Sure?\n\nAssistant: "
    assert list_votes(file) == [(ASK, BAD + tail, f"{GOOD}{tail}Yes.", "wins")]
    assert list_faults(file) == []
    assert sum("missing (null)" in note for note in file.notes) == 1
    row["response_b"] = json.dumps([BAD])
    (fault,) = list_faults(open_file(write_rows(tmp_path / "g.csv", [row])))
    assert "expected one answer a turn" in fault


@pytest.mark.parametrize(
    ("value", "vote"),
    [(-3, ("a", 3)), ("1.0", ("b", 1)), (0, ("tie", None)), ("+2", ("b", 2))],
)
def test_the_sign_of_a_strength_is_the_choice(tmp_path, value, vote):
    row = {"prompt": ASK, "response_1": GOOD, "response_2": BAD, "preference_strength": value}
    (read,) = open_file(write_rows(tmp_path / "f.csv", [row])).votes
    assert (read.cells["choice"], read.cells["strength"]) == vote


def test_only_submitted_responses_are_votes(tmp_path):
    answers = [
        {"value": "response_a", "user_id": "u1", "status": "submitted"},
        {"value": "response_b", "user_id": "u2", "status": "discarded"},
        {"value": "response_b", "user_id": "u3", "status": "draft"},
    ]
    fields = {"prompt": ASK, "response_a": GOOD, "response_b": BAD}
    record = {"id": "r", "fields": fields, "responses": {"preference": answers}}
    file = open_file(write_rows(tmp_path / "f.json", [record, {**record, "responses": {}}]))
    assert list_votes(file) == WINS
    assert len([row for row in file.pairs if row.fault is None]) == 2
    assert {note for note in file.notes if "status" in note} == {
        "response with status 'discarded': no vote",
        "response with status 'draft': no vote",
    }


def test_the_records_of_argillas_api_need_no_format(tmp_path):
    fields = {"prompt": ASK, "response_a": GOOD, "response_b": BAD}
    responses = [
        {"user_id": "u1", "status": "submitted", "values": {"preference": {"value": "response_a"}}},
        {"user_id": "u2", "status": "discarded", "values": None},
    ]
    record = {"id": "r", "fields": fields, "responses": responses}
    file = open_file(write_rows(tmp_path / "f.json", [record, {**record, "responses": []}]))
    assert list_votes(file) == WINS
    assert len([row for row in file.pairs if row.fault is None]) == 2
    assert "response with status 'discarded': no vote" in file.notes


def test_answers_to_other_questions_and_suggestions_are_read(tmp_path):
    record = {
        "id": "r",
        "fields": {"prompt": ASK, "response_a": GOOD, "response_b": BAD},
        "metadata": {"category": "physics"},
        "responses": {
            "preference": [{"value": "b", "user_id": "u1"}, {"value": "a", "user_id": "u2"}],
            "reason": [{"value": "clearer", "user_id": "u2"}],
        },
        "suggestions": {"preference": {"value": "a", "score": 0.8, "agent": "judge"}},
    }
    file = open_file(write_rows(tmp_path / "f.json", [record]))
    cells = [row.cells for row in file.votes]
    assert [(c["annotator_id"], c["choice"], c.get("reason")) for c in cells] == [
        ("u1", "b", None),
        ("u2", "a", "clearer"),
        ("judge", "a", None),
    ]
    assert (cells[2]["annotator_kind"], cells[2]["stated_confidence"]) == ("machine", 0.8)
    assert [row.cells["category"] for row in file.pairs] == ["physics"]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"fields": "text"}, "no object `fields`"),
        ({"metadata": ["x"]}, "metadata is a list"),
        ({"responses": {"preference": "a"}}, "preference"),
        ({"responses": {"preference": ["a"]}}, "preference"),
        ({"responses": ["a"]}, "values, user_id and status"),
        ({"suggestions": {"preference": "a"}}, "suggestion"),
        ({"metadata": {"schema": "preference-v9/comparison"}}, "Unknown row schema"),
    ],
)
def test_an_invalid_record_costs_its_row(tmp_path, more, reason):
    usual = {
        "id": "r",
        "fields": {"prompt": ASK, "response_a": GOOD, "response_b": BAD},
        "responses": {"preference": [{"value": "a", "user_id": "u"}]},
        "suggestions": {},
        "metadata": {},
    }
    file = open_file(write_rows(tmp_path / "f.json", [usual, usual | more]))
    (fault,) = list_faults(file)
    assert reason in fault
    assert len(list_votes(file)) == 1


def test_skipped_annotations_are_no_votes(tmp_path):
    result = [{"type": "pairwise", "value": {"selected": "left"}}]
    task = {
        "id": 1,
        "data": {"prompt": ASK, "answer1": GOOD, "answer2": BAD},
        "annotations": [
            {"completed_by": 3, "was_cancelled": True, "result": result},
            {"completed_by": 4, "result": result, "updated_at": "2026-03-01T09:03:40Z"},
        ],
    }
    file = open_file(write_rows(tmp_path / "f.json", [task]))
    (vote,) = file.votes
    assert (vote.cells["annotator_id"], vote.cells["voted_at"]) == (4, "2026-03-01T09:03:40Z")
    assert vote.cells["source_pair_id"] == 1


def test_good_completions_are_paired_with_bad_ones(tmp_path):
    rows = [
        {"prompt": ASK, "completion": GOOD, "label": True},
        {"prompt": f"{ASK}\r\n", "completion": BAD, "label": False},
        {"prompt": ASK, "completion": "Magic.", "label": "0"},
        {"prompt": "Who?", "completion": "Nobody.", "label": True},
        {"prompt": "Who?", "completion": "x", "label": "perhaps"},
    ]
    file = open_file(write_rows(tmp_path / "f.jsonl", rows))
    assert [vote[1:3] for vote in list_votes(file)] == [(GOOD, BAD), (GOOD, "Magic.")]
    (fault,) = list_faults(file)
    assert "label is 'perhaps'" in fault
    assert [n for note, n in file.notes.items() if "no completion of the other label" in note] == [
        1
    ]


def test_of_ranked_answers_each_two_make_a_pair(tmp_path):
    row = {"prompt": ASK, "answers": ["one", "two", "three"], "ranks": [2, 1, 2], "id": "q"}
    file = open_file(write_rows(tmp_path / "f.jsonl", [row]))
    assert [vote[1:3] for vote in list_votes(file)] == [("two", "one"), ("two", "three")]
    ids = [pair.cells["source_pair_id"] for pair in file.pairs]
    assert ids == ["q/1/0", "q/1/2"]
    assert any("equal rank" in note for note in file.notes)


def test_known_companions_are_part_of_the_prompt(tmp_path):
    row = {
        "instruction": "Translate.",
        "input": "Good night.",
        "system": "Be brief.",
        "history": [["Hi", "Hello!"]],
        "chosen": GOOD,
        "rejected": BAD,
    }
    ((prompt, *_),) = list_votes(open_file(write_rows(tmp_path / "f.json", [row])))
    assert [(m.role, m.content) for m in read_messages(prompt)] == [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Hello!"),
        ("user", "Translate.\nGood night."),
    ]


def test_a_text_in_context_is_a_document(tmp_path):
    row = {"question": ASK, "context": "Rayleigh, 1871.", "chosen": GOOD, "rejected": BAD}
    ((prompt, *_),) = list_votes(open_file(write_rows(tmp_path / "f.json", [row])))
    assert [m.role for m in read_messages(prompt)] == ["document", "user"]


def test_unknown_texts_have_to_be_decided(tmp_path):
    row = {"prompt": ASK, "chosen": GOOD, "rejected": BAD, "passage": "Rayleigh.", "n": "3"}
    path = write_rows(tmp_path / "f.jsonl", [row])
    with pytest.raises(DatasetError, match=r"\['passage'\].*--keep-others.*--leave-out 'passage'"):
        open_file(path)
    with pytest.raises(DatasetError, match=r"missing columns \['page'\]"):
        open_file(path, leave_out=("page",))
    left = open_file(path, leave_out=("passage",))
    assert left.becomes["passage"] == "left out, as you say"
    assert left.becomes["n"].startswith("left out")
    assert "tags" not in next(iter(left.pairs)).cells
    cells = next(iter(open_file(path, keep_others=True).pairs)).cells
    assert json.loads(cells["tags"]) == {"passage": "Rayleigh.", "n": "3"}
    read = open_file(path, "context=passage")
    assert "Rayleigh." in list_votes(read)[0][0]


def test_metadata_of_a_known_shape_become_tags(tmp_path):
    _, row, _ = ROWS["ultrafeedback"]
    file = open_file(write_rows(tmp_path / "f.jsonl", [row]))
    tags = json.loads(next(iter(file.pairs)).cells["tags"])
    assert tags == {"score_chosen": 8.5, "score_rejected": 3.0}
    assert file.becomes["messages"] == "left out: it repeats other columns"


def test_stepwise_rows_need_their_format(tmp_path):
    path = write_rows(
        tmp_path / "f.jsonl", [{"prompt": ASK, "completions": [BAD, GOOD], "labels": [False, True]}]
    )
    with pytest.raises(DatasetError, match="no known shape"):
        open_file(path)
    assert list_votes(open_file(path, format="answers")) == WINS


def test_two_fitting_shapes_ask_for_a_format(tmp_path):
    row = {"prompt": ASK, "chosen": GOOD, "rejected": BAD, "completion": GOOD, "label": True}
    path = write_rows(tmp_path / "f.jsonl", [row])
    with pytest.raises(DatasetError, match=r"--format trl .* or --format unpaired"):
        open_file(path)
    assert open_file(path, format="trl", leave_out=("completion",)).title.startswith("TRL")


def test_words_and_columns_can_be_named(tmp_path):
    row = {"Frage": ASK, "Eins": GOOD, "Zwei": BAD, "Urteil": "links", "Wie sicher": "0,8"}
    file = open_file(
        write_rows(tmp_path / "f.csv", [row]),
        *("prompt=Frage", "completion_a=Eins", "completion_b=Zwei", "choice=Urteil"),
        "stated_confidence=Wie sicher",
        words=("links=a",),
        decimal=",",
        annotator="Prüferin",
    )
    assert list_votes(file) == WINS
    (vote,) = file.votes
    assert (vote.cells["annotator_id"], vote.cells["stated_confidence"]) == ("Prüferin", "0.8")


def test_a_choice_that_contradicts_chosen_is_refused(tmp_path):
    rows = [{"prompt": ASK, "chosen": GOOD, "rejected": BAD, "choice": word} for word in ("a", "b")]
    file = open_file(write_rows(tmp_path / "f.jsonl", rows))
    (fault,) = list_faults(file)
    assert "choice is 'b' beside chosen" in fault
    assert list_votes(file) == WINS


def test_the_better_completion_is_not_always_a(tmp_path):
    rows = [
        {"prompt": f"Question {n}?", "chosen": f"yes {n}", "rejected": f"no {n}"} for n in range(40)
    ]
    choices = [
        row.cells["choice"] for row in open_file(write_rows(tmp_path / "f.jsonl", rows)).votes
    ]
    assert 10 < choices.count("a") < 30
    swapped = [{**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in rows]
    pairs = [
        open_file(write_rows(tmp_path / f"{i}.jsonl", each)).pairs
        for i, each in enumerate((rows, swapped))
    ]
    assert [row.cells for row in pairs[0]] == [row.cells for row in pairs[1]]


def test_compressed_files_are_read(tmp_path):
    _, row, votes = ROWS["tree"]
    path = tmp_path / "trees.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(row).encode()))
    assert list_votes(open_file(path)) == votes
    path.write_bytes(gzip.compress(json.dumps(row).encode())[:-9])
    with pytest.raises(DatasetError, match="no whole gzip file"):
        open_file(path)


def test_texts_without_commas_between_them_are_refused(tmp_path):
    """NumPy prints lists so; Python would join two turns into one."""
    row = SIDES | {"prompt": "['one' 'two']", "model_a": "m", "model_b": "n", "winner": "m"}
    (fault,) = list_faults(open_file(write_rows(tmp_path / "f.csv", [row])))
    assert "NumPy prints no commas" in fault


def test_a_winner_that_names_both_models_is_refused(tmp_path):
    row = SIDES | {"model_a": "m", "model_b": "m", "winner": "m"}
    file = open_file(write_rows(tmp_path / "f.jsonl", [row]))
    assert "the name of both models" in list_faults(file)[0]
    assert list_votes(file) == []


@pytest.mark.parametrize("values", [(True, False), ("True", "False"), ("1.0", "0.0")])
def test_one_hot_winners_may_be_flags(tmp_path, values):
    row = SIDES | dict(zip(("winner_model_a", "winner_model_b"), values, strict=True))
    row |= {"model_a": "m", "model_b": "n"}
    assert list_votes(open_file(write_rows(tmp_path / "f.jsonl", [row]))) == WINS


def test_a_best_answer_may_count_from_one(tmp_path):
    rows = [{"prompt": f"{ASK} {n}", "answers": [BAD, GOOD], "best": n} for n in (1, 2)]
    file = open_file(write_rows(tmp_path / "f.jsonl", rows))
    assert [vote[1] for vote in list_votes(file)] == [BAD, GOOD]
    assert list_faults(file) == []
    assert any("counts from 1" in note for note in file.notes)
    rows.append({"prompt": ASK, "answers": [BAD, GOOD], "best": 0})
    file = open_file(write_rows(tmp_path / "g.jsonl", rows))
    assert [vote[1] for vote in list_votes(file)] == [GOOD, BAD]
    assert "expected 0 to 1" in list_faults(file)[0]


def test_answers_without_the_best_one_are_read_by_their_scores(tmp_path):
    rows = [
        {"prompt": ASK, "answers": [BAD, GOOD], "scores": [1, 2], "best": None},
        {"prompt": "Who?", "answers": [BAD], "scores": [1], "best": None},
        {"prompt": "Where?", "answers": [BAD, GOOD], "scores": [1, 2], "best": 0},
    ]
    file = open_file(write_rows(tmp_path / "f.jsonl", rows))
    assert [vote[1] for vote in list_votes(file)] == [GOOD, BAD]
    list_faults(file)
    assert any("single answer" in note for note in file.notes)


def test_a_prompt_beside_whole_dialogues_loses_no_message(tmp_path):
    rules = {"role": "system", "content": "Be brief."}
    row = {"chosen": [USER, answer(GOOD)], "rejected": [USER, answer(BAD)]}
    rows = [row | {"prompt": [rules, USER]}, row | {"prompt": ASK}, row | {"prompt": "Else?"}]
    file = open_file(write_rows(tmp_path / "f.jsonl", rows))
    contents = [[m.content for m in read_messages(vote[0])] for vote in list_votes(file)]
    assert contents == [["Be brief.", ASK], [ASK], [ASK]]
    list_faults(file)
    assert [n for note, n in file.notes.items() if "prompt column differs" in note] == [1]


@pytest.mark.parametrize("column", ["input", "context"])
def test_a_lone_companion_is_the_prompt(tmp_path, column):
    row = {column: ASK, "chosen": f"Sure. {GOOD}", "rejected": f"Sure. {BAD}"}
    votes = list_votes(open_file(write_rows(tmp_path / "f.jsonl", [row])))
    assert votes == [(ASK, f"Sure. {GOOD}", f"Sure. {BAD}", "wins")]


def test_damaged_replies_of_a_tree_make_no_pair(tmp_path):
    replies = [{**reply, "text": None} for reply in TREE["replies"]]
    equal = [{**reply, "rank": 0} for reply in TREE["replies"]]
    rows = [{"prompt": {**TREE, "replies": r}} for r in (replies, equal, "text", ["text"])]
    file = open_file(write_rows(tmp_path / "f.jsonl", [*rows, {"prompt": TREE}]))
    assert list_votes(file) == WINS
    assert len(list_faults(file)) == 2
    assert sum(n for note, n in file.notes.items() if "rank" in note) > 0


def test_a_column_with_a_meaning_can_be_left_out(tmp_path):
    row = {"prompt": ASK, "chosen": GOOD, "rejected": BAD, "label": "physics"}
    path = write_rows(tmp_path / "f.jsonl", [row])
    assert "--leave-out 'label'" in list_faults(open_file(path))[0]
    file = open_file(path, leave_out=["label"])
    assert list_votes(file) == WINS
    assert file.becomes["label"] == "left out, as you say"


def test_tags_of_the_file_stay_beside_known_metadata(tmp_path):
    row = SIDES | {"model_a": "m", "model_b": "n", "winner": "m", "language": "en", "tags": "x"}
    (pair,) = open_file(write_rows(tmp_path / "f.jsonl", [row])).pairs
    assert json.loads(pair.cells["tags"]) == {"language": "en", "tags": "x"}


@pytest.mark.parametrize(
    ("text", "seconds"), [("3,25", "3.25"), ("3.25", "3.25"), ("1.234,5", "1234.5"), ("7", "7")]
)
def test_a_decimal_comma_changes_no_decimal_point(tmp_path, text, seconds):
    row = SIDES | {"choice": "a", "duration_s": text}
    (vote,) = open_file(write_rows(tmp_path / "f.csv", [row]), decimal=",").votes
    assert vote.cells["duration_s"] == seconds


def test_a_signed_strength_may_have_a_decimal_comma(tmp_path):
    row = {"prompt": ASK, "response_1": GOOD, "response_2": BAD, "preference_strength": "-2,0"}
    assert list_votes(open_file(write_rows(tmp_path / "f.csv", [row]), decimal=",")) == WINS


def test_sides_may_count_from_zero(tmp_path):
    row = {"prompt": ASK, "response_0": GOOD, "response_1": BAD, "choice": "a"}
    assert list_votes(open_file(write_rows(tmp_path / "f.csv", [row]))) == WINS


def test_single_messages_in_sharegpt_form_are_completions(tmp_path):
    row = {
        "conversations": [{"from": "human", "value": ASK}],
        "chosen": {"from": "gpt", "value": GOOD},
        "rejected": {"from": "gpt", "value": BAD},
    }
    assert list_votes(open_file(write_rows(tmp_path / "f.jsonl", [row]))) == WINS


@pytest.mark.parametrize("result", ["text", ["text"], [{"value": "left"}]])
def test_a_damaged_annotation_costs_its_task(tmp_path, result):
    _, task, _ = ROWS["label studio"]
    rows = [task, task | {"annotations": [{"result": result}]}, task | {"annotations": ["text"]}]
    file = open_file(write_rows(tmp_path / "f.json", rows))
    assert list_votes(file) == WINS
    assert len(list_faults(file)) == 2


def test_reasoning_beside_the_content_is_counted(tmp_path):
    chosen = [answer(GOOD) | {"reasoning_content": "Air scatters."}]
    row = {"prompt": ASK, "chosen": chosen, "rejected": [answer(BAD)]}
    file = open_file(write_rows(tmp_path / "f.jsonl", [row, row | {"chosen": [answer(GOOD)]}]))
    assert list_votes(file) == WINS * 2
    list_faults(file)
    assert [n for note, n in file.notes.items() if "reasoning" in note] == [1]


def test_columns_with_blanks_can_be_mapped(tmp_path):
    row = {"Frage": ASK, " Best answer": GOOD, "Other answer": BAD}
    file = open_file(
        write_rows(tmp_path / "f.csv", [row]),
        *("prompt=Frage", "chosen=Best answer", "rejected=Other answer"),
    )
    assert list_votes(file) == WINS
    path = write_rows(tmp_path / "g.csv", [{"Prompt": ASK, "Chosen": GOOD, "Rejected": BAD}])
    assert list_votes(open_file(path, "prompt=Prompt")) == WINS


def test_equal_names_in_two_letter_cases_stay_apart(tmp_path):
    row = {"prompt": ASK, "chosen": GOOD, "rejected": BAD, "Prompt": "Else?"}
    file = open_file(write_rows(tmp_path / "f.csv", [row]), leave_out=("Prompt",))
    assert list_votes(file) == WINS


def test_models_of_nested_answers_are_their_versions(tmp_path):
    answers = [{"response": BAD, "model": "small", "score": 1, "critique": "Wrong."}]
    answers += [{"response": GOOD, "model": "large", "score": 4, "critique": "Right."}]
    file = open_file(write_rows(tmp_path / "f.jsonl", [{"prompt": ASK, "completions": answers}]))
    (row,) = file.pairs
    versions = {row.cells[f"completion_{s}"]: row.cells[f"model_version_{s}"] for s in "ab"}
    assert versions == {GOOD: "large", BAD: "small"}
    assert any("critique" in note for note in file.notes)
    row = {"prompt": ASK, "completions": [BAD, GOOD], "scores": [1, 4], "models": ["m", "n"]}
    (pair,) = open_file(write_rows(tmp_path / "g.jsonl", [row])).pairs
    assert {pair.cells["model_version_a"], pair.cells["model_version_b"]} == {"m", "n"}


def write_messages(path: Path, *more: dict[str, Any]) -> Path:
    """OpenAssistant's rows, one for each message, with replies before what they answer."""
    empty = {"parent_id": None, "rank": None, "deleted": False, "lang": "en", "review_count": 3}
    replies = [empty | {"parent_id": "m"} | reply for reply in TREE["replies"]]
    rows = [*replies, empty | {"message_id": "m", "role": "prompter", "text": ASK}, *more]
    for row in rows:
        row.pop("replies", None)
    return write_rows(path, [row | {"message_tree_id": "m"} for row in rows])


@pytest.mark.parametrize("name", ["f.jsonl", "f.csv", "f.parquet"])
def test_messages_in_rows_are_joined_to_trees(tmp_path, name):
    file = open_file(write_messages(tmp_path / name))
    assert "OpenAssistant" in file.title
    assert list_votes(file) == WINS
    (pair,) = file.pairs
    assert json.loads(pair.cells["tags"])["lang"] == "en"


def test_messages_without_their_parent_are_counted(tmp_path):
    lone = {"message_id": "n", "parent_id": "x", "role": "assistant", "text": "?", "rank": 0}
    broken = {"message_id": "o", "parent_id": None, "role": "tool", "text": "?"}
    file = open_file(write_messages(tmp_path / "f.jsonl", lone, broken))
    assert list_votes(file) == WINS
    assert "role" in list_faults(file)[0]
    assert [n for note, n in file.notes.items() if "parent" in note] == [1]


@pytest.mark.parametrize("cell", ['{"selected": "right"}', '[{"choices": ["right"]}]', "right"])
def test_a_choice_of_label_studio_may_be_json(tmp_path, cell):
    row = {"prompt": ASK, "answer1": BAD, "answer2": GOOD, "id": 5, "annotator": 3}
    row |= {"annotation_id": 1, "lead_time": 3.5, "comparison": cell}
    assert list_votes(open_file(write_rows(tmp_path / "f.csv", [row]))) == WINS


def test_speakers_within_an_hh_rlhf_answer_are_its_text(tmp_path):
    good = f"{GOOD}\nUser: x\n\nSystem: y\nAssistant: z"
    row = {"chosen": HUMAN + good, "rejected": HUMAN + BAD}
    file = open_file(write_rows(tmp_path / "f.jsonl", [row]))
    assert list_votes(file) == [(ASK, good, BAD, "wins")]


def test_scores_of_readers_stay_beside_the_label(tmp_path):
    _, row, _ = ROWS["shp"]
    (pair,) = open_file(write_rows(tmp_path / "f.jsonl", [row])).pairs
    tags = {"post_id": "q1", "score_ratio": 3.0, "score_A": 3, "score_B": 9}
    assert json.loads(pair.cells["tags"]) == tags


def test_an_exchange_that_was_judged_ends_both_dialogues(tmp_path):
    row = {"model_a": "m", "model_b": "n", "winner": "model_a", "turn": 1}
    for side, text in (("a", GOOD), ("b", BAD)):
        row[f"conversation_{side}"] = [USER, answer(text), USER, answer(text)]
    file = open_file(write_rows(tmp_path / "f.jsonl", [row]))
    assert list_votes(file) == WINS
    assert list_faults(file) == []
    assert "turns after the judged one are left out" in file.notes
    (second,) = list_votes(open_file(write_rows(tmp_path / "g.jsonl", [{**row, "turn": 2}])))
    assert second[1].endswith(f"Assistant: {GOOD}")


def test_our_words_name_our_sides(tmp_path):
    row = {"prompt": ASK, "response_a": BAD, "response_b": GOOD, "choice": "a"}
    swapped = ("completion_a=response_b", "completion_b=response_a")
    assert list_votes(open_file(write_rows(tmp_path / "f.jsonl", [row]), *swapped)) == WINS


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"ratings": [5, 3]}, "2 scores beside 3 answers"),
        ({"ratings": [5, 3, 1], "instruction": [{**USER, "images": ["x"]}]}, "has 'images'"),
    ],
)
def test_what_would_be_lost_is_refused(tmp_path, row, fault):
    row = {"instruction": ASK, "generations": [GOOD, BAD, "No."], **row}
    (reason,) = list_faults(open_file(write_rows(tmp_path / "f.jsonl", [row])))
    assert fault in reason


def test_keys_of_messages_that_are_not_read_are_counted(tmp_path):
    row = {"chosen": [USER, answer(GOOD) | {"thinking": "Hm"}], "rejected": [USER, answer(BAD)]}
    score = [{"score": 1, "reasoning": "kept in the tag"}]
    flags = {"keep_others": True}
    for name, cells in (("f.jsonl", row), ("f.csv", {n: json.dumps(v) for n, v in row.items()})):
        file = open_file(write_rows(tmp_path / name, [cells | {"votes": score}]), **flags)
        assert list_votes(file) == WINS
        assert list_faults(file) == []
        assert [n for n in file.notes if "messages" in n] == ["'thinking' of messages is left out"]


def test_a_verdict_in_brackets_is_a_word(tmp_path):
    row = {"question": ASK, "answer_a": GOOD, "answer_b": BAD, "choice": "[[A]]"}
    path = write_rows(tmp_path / "f.jsonl", [row])
    assert list_votes(open_file(path, words=("[[A]]=a",))) == WINS
