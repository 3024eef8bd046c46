import json

import pandas as pd
import pytest

from rlhf_pipeline.core.conversations import split_turns
from rlhf_pipeline.core.errors import PromptError
from rlhf_pipeline.core.frames import PROMPTS, check_frame
from rlhf_pipeline.generate.prompts import Report, generate, write_jsonl
from rlhf_pipeline.generate.prompts.parameters import SourceParams

DAY = "2026-01-01"


def from_file(path, n=1, **more):
    report = more.pop("report", None)
    return generate(
        SourceParams(n=n, source="dataset", **more), day=DAY, source_file=path, report=report
    )


def write_file(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_n_prompts_are_n_lines_that_reimport_unchanged(tmp_path):
    frame = generate(SourceParams(n=37), day=DAY)
    assert write_jsonl(frame, tmp_path / "out" / "generated_prompts.jsonl") == 37
    lines = (tmp_path / "out" / "generated_prompts.jsonl").read_text().splitlines()
    rows = pd.DataFrame([json.loads(line) for line in lines])
    pd.testing.assert_frame_equal(check_frame(rows, PROMPTS), frame)


def test_export_is_readable_as_a_data_set(tmp_path):
    frame = generate(SourceParams(n=12), day=DAY)
    write_jsonl(frame, tmp_path / "p.jsonl")
    assert set(from_file(tmp_path / "p.jsonl", n=12)["prompt_id"]) == set(frame["prompt_id"])


def test_csv_and_parquet_give_the_same_prompts_as_jsonl(tmp_path):
    rows = pd.DataFrame(
        {
            "prompt": ["What is 1 + 1?", "Name a, tree"],
            "category": ["reasoning", "creative"],
            "reference": ["2", None],
        }
    )
    rows.to_csv(tmp_path / "p.csv", index=False)
    rows.to_parquet(tmp_path / "p.parquet")
    rows.to_json(tmp_path / "p.jsonl", orient="records", lines=True)
    frames = [from_file(tmp_path / f"p.{kind}", n=2) for kind in ("csv", "parquet", "jsonl")]
    pd.testing.assert_frame_equal(frames[0], frames[1])
    pd.testing.assert_frame_equal(frames[0], frames[2])
    assert frames[0].set_index("text")["reference"].to_dict() == {
        "What is 1 + 1?": "2",
        "Name a, tree": pytest.approx(float("nan"), nan_ok=True),
    }


def test_duplicates_of_a_file_come_once(tmp_path):
    path = write_file(
        tmp_path / "p.jsonl", '{"text": "same"}\n{"text": "same"}\n{"text": "other"}\n'
    )
    assert from_file(path, n=2)["prompt_id"].is_unique
    with pytest.raises(PromptError, match="has 2 unused new prompts, 3 were asked for"):
        from_file(path, n=3)


def test_three_of_100_bad_rows_are_named_by_line(tmp_path):
    rows = [
        json.dumps({"prompt": f"Question {i}?", "domain": "interview" if i % 2 else "Coding"})
        for i in range(100)
    ]
    rows[10], rows[50], rows[99] = (
        '{"prompt": ""}',
        '{"prompt": "cut off',
        '{"prompt": "x", "category": ["poetry"]}',
    )
    path, report = write_file(tmp_path / "batch.jsonl", "\n".join(rows)), Report()
    frame = from_file(path, n=97, report=report)
    assert len(frame) == 97
    assert [r.where.rpartition(", ")[2] for r in report.rejections] == [
        "line 11",
        "line 51",
        "line 100",
    ]
    assert (
        report.summary()
        == "97 kept, 0 duplicates, 0 near-duplicates, 0 excluded, 3 rejected (3 by row)"
    )
    assert [r.reason.partition(" ")[0] for r in report.rejections] == ["the", "no", "category"]
    domains = frame.groupby("category")["variables"].agg(set).to_dict()
    assert domains == {
        "coding": {'{"domain": "Coding"}'},
        "instruction": {'{"domain": "interview"}'},
    }


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_duplicates_and_domains_of_a_file_are_counted_and_kept(tmp_path, kind):
    rows = pd.DataFrame(
        {
            "question": ["Why?", "How?", "Why?", "When?", "Why?"],
            "domain": ["law", None, "law", None, "law"],
        }
    )
    path, report = tmp_path / f"p.{kind}", Report()
    {
        "csv": lambda: rows.to_csv(path, index=False),
        "jsonl": lambda: rows.to_json(path, orient="records", lines=True),
        "parquet": lambda: rows.to_parquet(path),
    }[kind]()
    frame = from_file(path, n=3, report=report, domain="history").set_index("text")
    assert report.n_duplicates == 2
    assert {text: json.loads(v)["domain"] for text, v in frame["variables"].items()} == {
        "Why?": "law",
        "How?": "history",
        "When?": "history",
    }


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv"])
def test_a_data_set_of_the_hub_is_drawn_from_by_its_name(tmp_path, kind):
    rows = pd.DataFrame({"prompt": [f"Question {i}?" for i in range(20)] + ["Question 0?", ""]})
    folder, report = tmp_path / "team-prompts", Report()
    folder.mkdir()
    path = folder / f"train.{kind}"
    {
        "csv": lambda: rows.to_csv(path, index=False),
        "jsonl": lambda: rows.to_json(path, orient="records", lines=True),
        "parquet": lambda: rows.to_parquet(path),
    }[kind]()
    frame = generate(
        SourceParams(n=20, source="dataset", dataset=str(folder)), day=DAY, report=report
    )
    assert set(frame["text"]) == {f"Question {i}?" for i in range(20)}
    assert report.n_duplicates == 1
    assert [str(r)[: len(f"data set {folder}, train, row 22")] for r in report.rejections] == [
        f"data set {folder}, train, row 22"
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.jsonl", b'{"text": "fine"}\n{"text": "caf\xe9"}\n', "line 2: not UTF-8"),
        ("p.csv", b"text\nfine\ncaf\xe9\n", "line 3: not UTF-8"),
        ("p.jsonl", '{"text": "fine"}\n{"text": \n', "line 2: no JSON"),
        ("p.jsonl", "[1]\n", "line 1: 1 is neither an object nor a text"),
        ("p.jsonl", '{"txt": "?"}\n', "line 1: no text"),
        ("p.jsonl", '{"text": "  "}\n', "line 1: the prompt is empty"),
        ("p.csv", "text,domain\nfine,law\n,law\n", "line 3: the prompt is empty"),
        ("p.jsonl", '{"prompt": null}\n', "line 1: the prompt is empty"),
        (
            "p.jsonl",
            json.dumps({"text": "x" * 100_001}),
            "line 1: the prompt has 100,001 bytes, the limit is 100,000",
        ),
        ("p.csv", "text\nfine\n" + "x" * 150_000 + "\n", "line 3: the prompt has 150,000 bytes"),
        ("p.jsonl", '{"text": "x", "category": 7}', "line 1: category 7 must be a printable name"),
        ("p.parquet", b"no parquet", "truncated or not a Parquet file"),
        (
            "p.jsonl",
            '{"text": "half \\ud800"}',
            r"line 1: the prompt holds a lone surrogate after 5 characters",
        ),
        ("p.jsonl", '{"text": "nul \\u0000"}', "line 1: the prompt holds a NUL"),
        ("p.txt", "x", "unknown kind '.txt'"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, name, content, message):
    with pytest.raises(PromptError, match=message):
        from_file(write_file(tmp_path / name, content), n=2)


def test_bad_row_is_rejected_alone(tmp_path):
    path, report = write_file(tmp_path / "p.csv", b'text\nfine\ncaf\xe9\n"also\nfine"\n'), Report()
    assert set(from_file(path, n=2, report=report)["text"]) == {"fine", "also\nfine"}
    assert [str(r) for r in report.rejections] == [
        f"{path}, line 3: not UTF-8 (byte 4 of a cell). Save the file as UTF-8"
    ]


def test_a_row_without_a_text_is_reported_with_its_columns(tmp_path):
    with pytest.raises(
        PromptError, match=r"no text. Give a column text or prompt.*; here are 'q', 'a'"
    ):
        from_file(write_file(tmp_path / "p.jsonl", '{"q": "x", "a": "y"}'))


def test_texts_of_a_folder_are_prompts_and_unreadable_ones_are_named(tmp_path):
    (tmp_path / "older").mkdir()
    write_file(tmp_path / "ann.txt", "\ufeff Ann Lee\r\n Nurse since 2011 ")
    write_file(tmp_path / "older" / "bob.md", "Bob Roe, welder")
    write_file(tmp_path / "cut.txt", "Caf\u00e9".encode("latin-1"))
    write_file(tmp_path / "empty.txt", " \n")
    write_file(tmp_path / "long.txt", "x" * 100_001)
    write_file(tmp_path / "notes.docx", "PK")
    report = Report()
    frame = from_file(tmp_path, n=2, domain="r\u00e9sum\u00e9", report=report).set_index("text")
    assert {text: json.loads(v) for text, v in frame["variables"].items()} == {
        "Ann Lee\n Nurse since 2011": {
            "document": "ann.txt",
            "n_whitespace_tokens": 5,
            "domain": "r\u00e9sum\u00e9",
        },
        "Bob Roe, welder": {
            "document": "older/bob.md",
            "n_whitespace_tokens": 3,
            "domain": "r\u00e9sum\u00e9",
        },
    }
    assert [
        (r.where.rpartition("/")[2], r.reason.partition(" (")[0]) for r in report.rejections
    ] == [
        ("cut.txt", "not UTF-8"),
        ("empty.txt", "the prompt is empty. Give every row a text"),
        ("long.txt", "the prompt has 100,001 bytes, the limit is 100,000. Shorten or drop it"),
    ]
    (tmp_path / "none").mkdir()
    with pytest.raises(PromptError, match="none holds no rows"):
        from_file(tmp_path / "none")


def test_what_stands_beside_an_instruction_is_part_of_the_conversation(tmp_path):
    rows = [
        {"instruction": "Summarise.", "input": "Bees dance."},
        {"instruction": "Summarise.", "input": "Ants march."},
        {"instruction": "Translate.", "input": ""},
        {
            "instruction": "And the Rhine?",
            "system": "Be terse.",
            "context": ["The Rhine is long.", {"title": "Map", "text": "It flows north."}],
            "history": [["How long is the Aare?", "288 km."]],
        },
    ]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    path, report = write_file(tmp_path / "p.jsonl", lines), Report()
    texts = sorted(from_file(path, n=4, report=report)["text"])
    assert texts[:3] == ["Summarise.\n\nAnts march.", "Summarise.\n\nBees dance.", "Translate."]
    assert [(turn.speaker, turn.text) for turn in split_turns(texts[3])] == [
        ("Document", "The Rhine is long."),
        ("Document Map", "It flows north."),
        ("System", "Be terse."),
        ("User", "How long is the Aare?"),
        ("Assistant", "288 km."),
        ("User", "And the Rhine?"),
    ]


def test_a_csv_cell_with_a_list_is_read_as_one(tmp_path):
    rows = [{"prompt": "Then?", "history": '[["First?", "One."]]', "context": "[sic] a note"}]
    pd.DataFrame(rows).to_csv(tmp_path / "p.csv", index=False)
    [text] = from_file(tmp_path / "p.csv")["text"]
    assert [turn.text for turn in split_turns(text)] == ["[sic] a note", "First?", "One.", "Then?"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "a", "history": 7}, "7 is not a message"),
        ({"prompt": "a", "system": ["b"]}, "beside the prompt is not a text"),
        ({"prompt": [{"role": "user", "content": [{"type": "image_url"}]}]}, "'image_url'"),
        ({"prompt": '["a", "b"]'}, "'a' is not a message"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "ends with a message of the"),
    ],
)
def test_a_conversation_that_cannot_be_read_is_refused(tmp_path, row, reason):
    path = write_file(tmp_path / "p.jsonl", json.dumps(row) + "\n" + '{"text": "fine"}\n')
    report = Report()
    assert from_file(path, report=report)["text"].tolist() == ["fine"]
    assert reason in report.rejections[0].reason


def test_prompts_of_messages_come_once_and_obey_terms(tmp_path):
    chat = [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "Why\nso?"}]
    forms = [chat, json.dumps(chat), [{"from": "human", "value": "Why\nso? "}], "Why\r\nso?"]
    path = write_file(
        tmp_path / "p.jsonl", "".join(f"{json.dumps({'prompt': form})}\n" for form in forms)
    )
    report = Report()
    frame = from_file(path, n=2, must=["why so"], must_not=["role"], report=report)
    assert set(frame["text"]) == {json.dumps(chat), "Why\nso? "}
    assert report.n_duplicates == 2


def test_a_conversation_is_not_mutated(tmp_path):
    chat = [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "Why?"}]
    lines = [{"text": chat}, *({"text": f"Name {n} lakes of the Alps."} for n in range(9))]
    path = write_file(tmp_path / "p.jsonl", "".join(f"{json.dumps(row)}\n" for row in lines))
    report = Report()
    params = SourceParams(n=8, source="evolution", generations=1, population=4)
    frame = generate(params, day=DAY, source_file=path, report=report)
    assert not any(split_turns(text) for text in frame["text"])
    assert "cannot be mutated" in report.rejections[0].reason
