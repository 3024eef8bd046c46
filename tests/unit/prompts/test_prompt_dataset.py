import json

import pandas as pd
import pytest

from rlhf_pipeline.errors import PromptError
from rlhf_pipeline.prompts import PromptParams, generate, read_jsonl, write_jsonl

DAY = "2026-01-01"


def from_file(path, n=1, **more):
    return generate(PromptParams(n=n, source="dataset", **more), day=DAY, source_file=path)


def written(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_n_prompts_are_n_lines_that_reimport_unchanged(tmp_path):
    frame = generate(PromptParams(n=37), day=DAY)
    assert write_jsonl(frame, tmp_path / "out" / "generated_prompts.jsonl") == 37
    assert (tmp_path / "out" / "generated_prompts.jsonl").read_bytes().count(b"\n") == 37
    pd.testing.assert_frame_equal(read_jsonl(tmp_path / "out" / "generated_prompts.jsonl"), frame)


def test_texts_with_line_separators_stay_one_line_each(tmp_path):
    odd = 'one\ntwo\u2028three \u00e9\u4e2d "quoted"'
    frame = from_file(written(tmp_path / "p.jsonl", json.dumps({"text": odd})))
    write_jsonl(frame, tmp_path / "again.jsonl")
    assert read_jsonl(tmp_path / "again.jsonl")["text"].tolist() == [odd]
    assert (tmp_path / "again.jsonl").read_bytes().count(b"\n") == 1


def test_an_export_is_a_data_set_again(tmp_path):
    frame = generate(PromptParams(n=12), day=DAY)
    write_jsonl(frame, tmp_path / "p.jsonl")
    assert set(from_file(tmp_path / "p.jsonl", n=12)["prompt_id"]) == set(frame["prompt_id"])


def test_csv_and_parquet_give_the_same_prompts_as_jsonl(tmp_path):
    rows = pd.DataFrame({"prompt": ["What is 1 + 1?", "Name a, tree"], "category": ["reasoning", "creative"], "reference": ["2", None]})
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
    path = written(tmp_path / "p.jsonl", '{"text": "same"}\n{"text": "same"}\n{"text": "other"}\n')
    assert from_file(path, n=2)["prompt_id"].is_unique
    with pytest.raises(PromptError, match="has 2 unused new prompts, 3 were asked for"):
        from_file(path, n=3)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.jsonl", b'{"text": "fine"}\n{"text": "caf\xe9"}\n', "line 2: not UTF-8"),
        ("p.csv", b"text\nfine\ncaf\xe9\n", "line 3: not UTF-8"),
        ("p.jsonl", '{"text": "fine"}\n{"text": \n', "line 2: no JSON"),
        ("p.jsonl", "[1]\n", "line 1: a list, not an object"),
        ("p.jsonl", '{"txt": "?"}\n', "line 1: no text"),
        ("p.jsonl", '{"text": "  "}\n', "line 1: the prompt is empty"),
        ("p.jsonl", json.dumps({"text": "x" * 100_001}), "line 1: the prompt has 100,001 bytes, the limit is 100,000"),
        ("p.csv", "text\nfine\n" + "x" * 150_000 + "\n", "line 3: the prompt has 150,000 bytes"),
        ("p.jsonl", '{"text": "x", "category": "poetry"}', "line 1: category 'poetry'"),
        ("p.parquet", b"no parquet", "no readable Parquet"),
        ("p.txt", "x", "unknown kind '.txt'"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path, name, content, message):
    with pytest.raises(PromptError, match=message):
        from_file(written(tmp_path / name, content))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(PromptError, match="does not exist"):
        from_file(tmp_path / "nothing.jsonl")
    with pytest.raises(PromptError, match="RLHF_PROMPTS_FILE"):
        from_file(None)


def test_a_file_of_other_columns_is_no_export(tmp_path):
    with pytest.raises(PromptError, match="holds no exported prompts"):
        read_jsonl(written(tmp_path / "p.jsonl", '{"text": "x"}\n'))


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    assert from_file(written(tmp_path / "p.csv", "\ufefftext\nhello\n"))["text"].tolist() == ["hello"]
