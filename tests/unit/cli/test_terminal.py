"""Stored text reaches a terminal escaped: no control sequence, no bidi override and no markup is
obeyed.
"""

import json
import sys
from pathlib import Path

import pytest

from rlhf_pipeline.cli import main
from rlhf_pipeline.cli.tables import echo, show, show_json
from rlhf_pipeline.core.terminal import escape_controls

HOSTILE = "\x1b[2J\x1b]0;title\x07\x9b31m[red]x[/red]\u202ecba\u2066\r\x08\x7f:smile:"
OBEYED = set("\x1b\x07\x9b\u202e\u2066\x08\x7f\r")
SHOWN = (
    r"\u001b[2J\u001b]0;title\u0007\u009b31m[red]x[/red]\u202ecba\u2066\u000d\u0008\u007f:smile:"
)


def test_controls_are_escaped_and_ordinary_text_is_not():
    assert escape_controls(HOSTILE) == SHOWN
    ordinary = "tab\tline\nDOS line\r\n“ü” שלום \u200f 👩\u200d🚀 \u00a0"
    assert escape_controls(ordinary) == ordinary


def test_escaped_json_reads_as_the_same_text(capsys: pytest.CaptureFixture[str]):
    show_json([{"reason": HOSTILE}])
    printed = capsys.readouterr().out
    assert not OBEYED & set(printed)
    assert json.loads(printed) == [{"reason": HOSTILE}]


def test_lines_and_tables_show_hostile_text(capsys: pytest.CaptureFixture[str]):
    echo(HOSTILE)
    show([{"name": HOSTILE}], title=HOSTILE, empty="", caption=HOSTILE)
    show([], title="", empty=HOSTILE)
    printed = capsys.readouterr().out
    assert not OBEYED & set(printed)
    assert printed.count(SHOWN) == 5


def test_errors_show_hostile_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("RLHF_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["rlhf", "users", "token", f"{HOSTILE}@example.org"])
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr().err
    assert "e-mail address" in printed
    assert not OBEYED & set(printed)
