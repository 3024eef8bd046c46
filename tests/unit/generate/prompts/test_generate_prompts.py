import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from rlhf_pipeline.core.errors import PromptError
from rlhf_pipeline.generate.prompts import PromptParams, Report, generate

DAY = "2026-01-01"


def test_quotas_of_categories_are_exact():
    shares = {"reasoning": 1.0, "factual": 1.0, "creative": 1.0}
    frame = generate(PromptParams(n=60, categories=shares), day=DAY)
    assert frame["category"].value_counts().to_dict() == {
        "reasoning": 20,
        "factual": 20,
        "creative": 20,
    }


def test_quotas_of_difficulties_are_exact_within_each_category():
    frame = generate(
        PromptParams(n=60, difficulties={"easy": 0.5, "medium": 0.3, "hard": 0.2}), day=DAY
    )
    counts = frame.groupby("category")["difficulty"].value_counts().unstack()
    assert counts.to_numpy().tolist() == [[5, 2, 3]] * 6  # columns easy, hard, medium


def test_unknown_category_is_refused_with_the_known_ones():
    with pytest.raises(PromptError, match=r"no templates of category 'poetry'.*reasoning"):
        generate(PromptParams(categories={"poetry": 1}), day=DAY)


def test_unprintable_category_and_unknown_difficulty_are_refused():
    with pytest.raises(ValidationError, match=r"category .* must be a printable name"):
        PromptParams(categories={"a\n": 1, "b\x07": 1})
    with pytest.raises(ValidationError, match=r"unknown difficulties \['harder'\]"):
        PromptParams(difficulties={"harder": 1})


def test_excluded_prompts_do_not_come_again():
    params = PromptParams(n=200, categories={"safety": 1})
    frozen = generate(params.model_copy(update={"seed": 9}), day="frozen")
    frame = generate(params, day=DAY, exclude=frozenset(frozen["prompt_id"]))
    assert not set(frame["prompt_id"]) & set(frozen["prompt_id"])


def test_quota_beyond_the_library_names_the_cure():
    with pytest.raises(PromptError, match=r"unused safety prompts.*Lower n"):
        generate(PromptParams(n=5000, categories={"safety": 1}), day=DAY)


class Writer:
    """A text generator that numbers what it writes and repeats itself on its first call."""

    def __init__(self):
        self.calls = 0

    def generate_texts(self, instructions, *, seed):
        self.calls += 1
        return [
            f"Prompt {i % 3 if self.calls == 1 else i}\n of {seed}"
            for i in range(len(instructions))
        ]


def test_text_generator_is_retried_while_it_repeats_itself():
    writer = Writer()
    frame = generate(PromptParams(n=10, source="freeform"), day=DAY, text_generator=writer)
    assert len(frame) == 10
    assert writer.calls == 2
    assert "instruction" in json.loads(frame["variables"][0])
    assert "\n" not in frame["text"][0]


def test_plain_lines_of_a_text_file_are_prompts(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes("Say hello.\r\n\r\nSay\u2028good\x85bye.\n".encode())
    frame = generate(PromptParams(n=2, source="freeform"), day=DAY, source_file=path)
    assert set(frame["text"]) == {"Say hello.", "Say\u2028good\x85bye."}


def test_a_text_generator_receives_the_level_of_each_quota():
    requests = []

    class Heard(Writer):
        def generate_texts(self, instructions, *, seed):
            requests.extend(instructions)
            return [f"Prompt {len(requests)} {i}" for i, _ in enumerate(instructions)]

    params = PromptParams(
        n=12,
        source="freeform",
        categories={"coding": 1, "safety": 1},
        difficulties={"easy": 1, "hard": 2},
    )
    frame = generate(params, day=DAY, text_generator=Heard())
    assert frame.groupby(["category", "difficulty"]).size().to_dict() == {
        ("coding", "easy"): 2, ("coding", "hard"): 4, ("safety", "easy"): 2, ("safety", "hard"): 4,
    }  # fmt: skip
    assert [
        sum(f"Write one {level} prompt" in text for text in requests)
        for level in ("easy", "medium", "hard")
    ] == [4, 0, 8]


def test_bad_instruction_line_is_rejected_alone(tmp_path):
    path = tmp_path / "lines.yaml"
    path.write_text(
        "coding: [Say hello., ' ']\n' ': [Rhyme.]\npoetry: [Rhyme on it.]\n", encoding="utf-8"
    )
    report = Report()
    frame = generate(PromptParams(n=2, source="freeform"), day=DAY, source_file=path, report=report)
    assert dict(zip(frame["text"], frame["category"], strict=True)) == {
        "Say hello.": "coding",
        "Rhyme on it.": "poetry",
    }
    assert [str(r) for r in report.rejections] == [
        f"{path},   1: category ' ' must be a printable name of at most 60 characters",
    ]
    with pytest.raises(
        PromptError,
        match=r"2 unused new prompts, 3 were asked for.*1 were rejected, the first",
    ):
        generate(PromptParams(n=3, source="freeform"), day=DAY, source_file=path)


def test_the_report_counts_each_kind():
    report = Report()
    params = PromptParams(n=30, categories={"creative": 1}, must_not=["rain"], max_similarity=0.5)
    excluded = frozenset(generate(params, day=DAY)["prompt_id"][:10])
    generate(params, day=DAY, exclude=excluded, report=report)
    assert report.counts["kept"] == 30
    assert report.counts["excluded"] == 10
    assert report.counts["near-duplicates"] > 0
    assert report.counts["rejected"] == report.n_rejected["must_not"] > 0
    assert report.summary().startswith("30 kept, 0 duplicates, ")
    assert report.summary().endswith(
        f"10 excluded, {report.counts['rejected']} rejected ({report.counts['rejected']} by "
        "must_not)"
    )


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_memory_hardly_grows_with_the_number_of_prompts(tmp_path):
    """Made, framed and written, each in a process of its own: at most 1.3 times the one and 100
    MB.
    """
    script = (
        "import re, sys; from pathlib import Path; from rlhf_pipeline.generate.prompts import "
        "generate, write_jsonl; from rlhf_pipeline.generate.prompts.parameters import SourceParams;"
        "n = write_jsonl(generate(SourceParams(n=int(sys.argv[1]), "
        "library='all'), day='2026-01-01'), Path(sys.argv[2]));print(n, "
        "re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])"
    )

    def made(n):
        command = [sys.executable, "-c", script, str(n), str(tmp_path / "p.jsonl")]
        lines, kilobytes = map(
            int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        )
        assert lines == n
        return kilobytes / 1024

    few, many = made(1_000), made(100_000)
    assert many <= 1.3 * few + 100
