"""`rlhf import calibration-log`: what a log holds stands in the store once, and comes out of it as
it went in.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.core.api_types.filters import AuditFilter
from rlhf_pipeline.core.errors import DatasetError
from rlhf_pipeline.core.records import CalibrationMetrics, CalibrationReport, Interval
from rlhf_pipeline.store import Store

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def rlhf(home):
    def call(*arguments, in_home=home):
        environ = {"RLHF_HOME": str(in_home), "COLUMNS": "200"}
        return (
            CliRunner()
            .invoke(app, [str(a) for a in arguments], env=environ, catch_exceptions=False)
            .output
        )

    return call


def entry(hour: int = 0, *, model: str = "old.reward_model@4", **more) -> dict:
    interval = Interval(value=0.123456789012345, low=0.1, high=0.2, n=50)
    metrics = CalibrationMetrics(
        n=50,
        accuracy=interval,
        binned_gap=interval,
        brier=interval,
        log_loss=interval,
        ece=interval,
        slope=None,
    )
    report = CalibrationReport(
        reward_model=model,
        calibrator_version=hour + 1,
        method="platt",
        params={"slope": 0.7},
        raw=metrics,
        calibrated=metrics,
        candidates={"none": 0.7},
        data_hash="d",
        n_fit=100,
        fitted_at=NOON + timedelta(hours=hour),
    )
    return json.loads(report.model_dump_json()) | more


def write_log(path: Path, entries: object) -> Path:
    path.write_text(json.dumps(entries), encoding="utf-8")
    return path


def store_of(home: Path) -> Store:
    return Store.open(f"sqlite:///{home}/store.db")


def test_a_log_goes_in_once_and_comes_out_equal(rlhf, home, tmp_path):
    log = [entry(0), entry(1, may_serve=False), entry(2, model="old.reward_model@5")]
    file = write_log(tmp_path / "calibration_log.json", log)
    assert "3 imported, 0 known already, 0 rejected, of 3 entries" in rlhf(
        "import", "calibration-log", file
    )
    assert "0 imported, 3 known already" in rlhf("import", "calibration-log", file)
    out = tmp_path / "out.json"
    rlhf("export", "calibration-log", "--out", out)
    assert json.loads(out.read_text(encoding="utf-8")) == log
    elsewhere = tmp_path / "elsewhere"
    assert "3 imported" in rlhf("import", "calibration-log", out, in_home=elsewhere)
    rlhf("export", "calibration-log", "--out", tmp_path / "again.json", in_home=elsewhere)
    assert (tmp_path / "again.json").read_bytes() == out.read_bytes()
    with store_of(home) as store:
        assert store.calibrations.log() == []
        assert [store.calibrations.latest_serving(f"old.reward_model@{n}") for n in (4, 5)] == [
            None,
            None,
        ]
        links, _ = store.audit.page(AuditFilter(action="calibration.import"))
        assert len(links) == 3
        assert store.audit.verify() >= 3
        assert [(record.kind, record.state) for record in store.imports.all()] == [
            ("calibration-log", "finished")
        ] * 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_fit": "many"}, "entry 2: n_fit: Input should be a valid integer"),
        ({"fitted_at": "2026-01-01T12:00:00"}, "entry 2: fitted_at needs a time zone"),
        ({"fitted_at": "0001-01-01T00:00:00+14:00"}, "entry 2: a number or text"),
        ({"params": {"slope": float("nan")}}, "entry 2: a number or text that JSON does not hold"),
        ({"reward_model": "m\x00"}, "reward_model a name"),
        ({"temperature": 1.5}, "entry 2: temperature: Extra inputs"),
    ],
)
def test_bad_entry_is_named_and_the_others_are_imported(rlhf, home, tmp_path, wrong, message):
    output = rlhf(
        "import",
        "calibration-log",
        write_log(tmp_path / "log.json", [entry(0), entry(1) | wrong, entry(2)]),
    )
    assert "2 imported, 0 known already, 1 rejected, of 3 entries" in output
    assert message in output
    with store_of(home) as store:
        assert [report.calibrator_version for report in store.calibrations.whole_log()] == [1, 3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("{}", "not a JSON list"),
        ("[" * 100_000, "not JSON"),
        ("[1, 2]", "No entry of .* could be imported"),
        (b"\xff\xfe[]", "not UTF-8"),
    ],
)
def test_an_invalid_log_is_refused_as_a_whole(rlhf, home, tmp_path, text, message):
    file = tmp_path / "log.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DatasetError, match=message):
        rlhf("import", "calibration-log", file)
    with pytest.raises(DatasetError, match=r"gone\.json cannot be read"):
        rlhf("import", "calibration-log", tmp_path / "gone.json")
