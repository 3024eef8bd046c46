import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlhf_pipeline.errors import PromptError
from rlhf_pipeline.prompts import Report, generate, read_jsonl, write_jsonl
from rlhf_pipeline.prompts.parameters import SourceParams

DAY = "2026-01-01"
SAMPLE = Path(__file__).parents[3] / "examples" / "prompts.jsonl"


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
    assert (tmp_path / "out" / "generated_prompts.jsonl").read_bytes().count(b"\n") == 37
    pd.testing.assert_frame_equal(read_jsonl(tmp_path / "out" / "generated_prompts.jsonl"), frame)


def test_texts_with_line_separators_stay_one_line_each(tmp_path):
    odd = 'one\ntwo\u2028three \u00e9\u4e2d "quoted"'
    frame = from_file(write_file(tmp_path / "p.jsonl", json.dumps({"text": odd})))
    write_jsonl(frame, tmp_path / "again.jsonl")
    assert read_jsonl(tmp_path / "again.jsonl")["text"].tolist() == [odd]
    assert (tmp_path / "again.jsonl").read_bytes().count(b"\n") == 1


def test_an_export_is_a_data_set_again(tmp_path):
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


def test_a_batch_of_100_rows_with_3_bad_ones_lands_97_and_names_3_by_line(tmp_path):
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


def test_sample_file_has_own_categories_and_no_bad_row():
    report = Report()
    frame = from_file(SAMPLE, n=40, report=report)
    assert report.rejections == []
    assert set(frame["category"]) == {"support", "legal", "coding", "writing", "facts"}
    assert frame["reference"].notna().sum() >= 5


def test_own_categories_and_the_topic_column_are_kept(tmp_path):
    path = write_file(
        tmp_path / "own.csv", "text,category,topic\nMay I?,Legal,contracts\nHelp me.,support,\n"
    )
    frame = from_file(path, n=2, categories={"legal": 1, "support": 1})
    assert frame.sort_values("category")[["category", "variables"]].to_numpy().tolist() == [
        ["legal", '{"domain": "contracts"}'],
        ["support", "{}"],
    ]
    with pytest.raises(PromptError, match=r"0 unused lega prompts.*categories: legal, support"):
        from_file(path, n=2, categories={"lega": 1})


def test_an_invalid_json_item_is_named_by_its_first_line(tmp_path):
    rows = [json.dumps({"prompt": f"Question {i}?"}, indent=1) for i in range(100)]
    rows[10], rows[50], rows[99] = '{"prompt": ""}', "7", '{"question": 3}'
    path = write_file(tmp_path / "sample_batch.json", "[\n" + ",\n".join(rows) + "\n]\n")
    report = Report()
    assert len(from_file(path, n=97, report=report)) == 97
    lines = path.read_text(encoding="utf-8").splitlines()
    named = [int(r.where.rpartition(" ")[2]) for r in report.rejections]
    assert [lines[n - 1].rstrip(",") for n in named] == [rows[10], rows[50], rows[99]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "holds no JSON array"),
        ('[{"text": "x"} {}]', "line 1: no comma and no ]"),
        ('[{"text": "x"},\n{"text": }]', "line 2: no JSON"),
        (b"[\xe9]", "not UTF-8"),
    ],
)
def test_a_json_file_without_a_list_is_refused(tmp_path, content, message):
    with pytest.raises(PromptError, match=message):
        from_file(write_file(tmp_path / "p.json", content))


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


@pytest.mark.parametrize("params", [{"dataset": "missing/folder/of/rows"}, {"split": "tset"}])
def test_a_data_set_or_split_that_is_not_there_is_named_with_the_way_round(tmp_path, params):
    (tmp_path / "train.jsonl").write_text('{"prompt": "x"}\n')
    with pytest.raises(
        PromptError,
        match=r"data set .* cannot be read .*Check its name and split; without a network",
    ):
        generate(
            SourceParams(n=1, source="dataset", **({"dataset": str(tmp_path)} | params)), day=DAY
        )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.jsonl", b'{"text": "fine"}\n{"text": "caf\xe9"}\n', "line 2: not UTF-8"),
        ("p.csv", b"text\nfine\ncaf\xe9\n", "line 3: not UTF-8"),
        ("p.jsonl", '{"text": "fine"}\n{"text": \n', "line 2: no JSON"),
        ("p.jsonl", "[1]\n", "line 1: a list, not an object"),
        ("p.jsonl", '{"txt": "?"}\n', "line 1: no text"),
        ("p.jsonl", '{"text": "  "}\n', "line 1: the prompt is empty"),
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


def test_one_bad_row_costs_no_other(tmp_path):
    path, report = write_file(tmp_path / "p.csv", b'text\nfine\ncaf\xe9\n"also\nfine"\n'), Report()
    assert set(from_file(path, n=2, report=report)["text"]) == {"fine", "also\nfine"}
    assert [str(r) for r in report.rejections] == [
        f"{path}, line 3: not UTF-8 (byte 4 of a cell). Save the file as UTF-8"
    ]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(PromptError, match="does not exist"):
        from_file(tmp_path / "nothing.jsonl")
    with pytest.raises(PromptError, match="RLHF_PROMPTS_FILE"):
        from_file(None)


def test_a_file_with_other_columns_is_not_an_export(tmp_path):
    with pytest.raises(PromptError, match="is not a file of exported prompts"):
        read_jsonl(write_file(tmp_path / "p.jsonl", '{"text": "x"}\n'))


def test_a_byte_order_mark_is_not_part_of_the_text(tmp_path):
    assert from_file(write_file(tmp_path / "p.csv", "\ufefftext\nhello\n"))["text"].tolist() == [
        "hello"
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.csv", "text,text\na,b\n", r"line 1: columns \['text'\] come twice"),
        (
            "p.csv",
            "text;category\nName a tree;factual\n",
            "line 1: the columns are separated by ';'.*--delimiter",
        ),
        ("p.csv", b"question\xe9,text\na,b\n", "line 1: not UTF-8.*names the columns"),
        ("p.csv", "text\nfine\n".encode("utf-16"), "is UTF-16"),
        (
            "p.csv",
            'text\nfine\n"open\nand all\nthat follows\n',
            "line 3: a quoted cell that opens here never ends",
        ),
        ("p.csv", "", "holds no rows"),
        ("p.csv", "text\n", "holds no rows"),
        ("p.jsonl", "\n\n", "holds no rows"),
        ("p.json", "[]", "holds no rows"),
    ],
)
def test_a_file_that_would_be_misread_is_refused_whole(tmp_path, name, content, message):
    with pytest.raises(PromptError, match=message):
        from_file(write_file(tmp_path / name, content))


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_of_a_csv_file_may_end_in_any_way(tmp_path, end):
    path = write_file(tmp_path / "p.csv", end.join(["text", "one", "two", ""]))
    assert set(from_file(path, n=2)["text"]) == {"one", "two"}


def test_csv_rows_of_another_length_are_refused_and_never_cut(tmp_path):
    path = write_file(
        tmp_path / "p.csv",
        'text,domain\nName a, tree,sea\nshort\n"Name a, rock",sea\n\n"a"b,sea\n',
    )
    report = Report()
    assert from_file(path, report=report)["text"].tolist() == ["Name a, rock"]
    assert [str(r).rpartition(", line ")[2].partition(". ")[0] for r in report.rejections] == [
        "2: 3 cells, the header has 2",
        "3: 1 cells, the header has 2",
        "6: not CSV (',' expected after '\"')",
    ]


def test_a_row_over_several_lines_is_named_by_its_first_and_costs_no_other(tmp_path):
    path, report = write_file(tmp_path / "p.csv", b'text\n"a\xe9\nb\xe9"\nfine\n'), Report()
    assert from_file(path, report=report)["text"].tolist() == ["fine"]
    assert [r.where.rpartition(", ")[2] for r in report.rejections] == ["line 2"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"reference": "\ud800"}, "reference holds a lone surrogate"),
        ({"reference": "a\x00"}, "reference holds a NUL"),
        ({"reference": ["a", "b"]}, "reference is a list, not a text"),
        ({"variables": {"a": ["\udfff"]}}, "variables holds a lone surrogate"),
        ({"domain": "\udfff"}, "domain holds a lone surrogate"),
        ({"template_id": "\udfff"}, "template_id holds a lone surrogate"),
        ({"category": ["a"]}, "category ['a'] must be a printable name"),
    ],
)
def test_an_invalid_extra_cell_costs_only_its_row(tmp_path, row, reason):
    rows, report = [{"text": "fine"}, {"text": "bad"} | row], Report()
    path = write_file(tmp_path / "p.jsonl", "\n".join(map(json.dumps, rows)))
    frame = from_file(path, report=report)
    write_jsonl(frame, tmp_path / "again.jsonl")
    assert frame["text"].tolist() == ["fine"]
    assert [(r.where.rpartition(", ")[2], r.reason[: len(reason)]) for r in report.rejections] == [
        ("line 2", reason)
    ]


def test_the_same_text_in_another_form_of_unicode_is_a_duplicate(tmp_path):
    path, report = write_file(tmp_path / "p.csv", "text\ncaf\u00e9?\ncafe\u0301?\n"), Report()
    assert from_file(path, report=report)["text"].tolist() == ["caf\u00e9?"]
    assert report.n_duplicates == 1


def test_a_missing_reference_is_none_and_categories_are_read_in_any_case(tmp_path):
    row = from_file(
        write_file(
            tmp_path / "p.jsonl",
            '{"text": "x", "reference": null, "category": " Reasoning", "difficulty": "Hard"}',
        )
    ).iloc[0]
    assert pd.isna(row["reference"])
    assert (row["category"], row["difficulty"]) == ("reasoning", "hard")


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


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"text": "x", "text": "y"}', "line 2: key 'text' occurs twice"),
        ('{"text": "x", "variables": {"n": 1e400}}', "line 2: 'n' is 1e400, not a finite number"),
    ],
)
def test_rows_that_json_would_change_are_refused(tmp_path, line, said):
    report = Report()
    path = write_file(tmp_path / "p.jsonl", f'{{"text": "fine"}}\n{line}\n')
    assert from_file(path, report=report)["text"].tolist() == ["fine"]
    assert said in " ".join(
        f"{refused.where}: {refused.reason}" for refused in report.rejections
    ).replace(str(path) + ", ", "")
    with pytest.raises(PromptError, match=said):
        from_file(write_file(tmp_path / "p.json", f'[{{"text": "fine"}},\n{line}]'))


def test_duplicate_columns_of_a_parquet_file_are_named(tmp_path):
    pq.write_table(
        pa.table([pa.array(["x"]), pa.array(["y"])], names=["text", "text"]), tmp_path / "p.parquet"
    )
    with pytest.raises(PromptError, match=r"columns \['text'\] come twice in the schema"):
        from_file(tmp_path / "p.parquet")
