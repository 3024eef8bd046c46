"""Drift over days by API and page: the verdicts of the stored reports, read again once replaced."""

import json

import pandas as pd

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.frames import DRIFT_REPORTS, check_frame
from rlhf_pipeline.core.records import Role
from tests.web.conftest import Web
from tests.web.databases import on_sqlite

pytestmark = on_sqlite
EVENT = {"statistic": 7.5, "threshold": 7.0, "error_before": 0.2, "error_after": 0.6}


def write_report(web: Web, day: str, verdict: str) -> None:
    rows = [
        {
            "day": day,
            "space": space,
            "detector": detector,
            "model_version": "demo.reward_model@1",
            "verdict": verdict if space == "errors" else "stable",
            "statistic": statistic,
            "threshold": None if statistic is None else 0.2,
            "p_value": None,
            "n_reference": 30,
            "n_current": 40,
            "evidence": json.dumps(evidence),
        }
        for space, detector, statistic, evidence in (
            ("scores", "ks", 0.1, {"effect": 0.05, "alpha": 0.01, "p_adjusted": 0.3}),
            ("errors", "sequential_test", None, {"events": [EVENT] if verdict == "drift" else []}),
        )
    ]
    files = Artefacts(web.settings.frames)
    files.write_frame("drift_report", check_frame(pd.DataFrame(rows), DRIFT_REPORTS), day)


def test_point_shows_evidence_and_links_to_its_day(paged: Web):
    reader = paged.client("auditor")
    assert reader.get("/charts/drift").json()["panels"] == []
    assert reader.get("/drift-tests").json()["items"] == []
    write_report(paged, "2026-01-02", "stable")
    write_report(paged, "2026-01-03", "stable")
    (panel,) = reader.get("/charts/drift").json()["panels"]
    assert {series["name"] for series in panel["series"]} == {"stable"}
    write_report(paged, "2026-01-03", "drift")
    (panel,) = reader.get("/charts/drift?space=errors").json()["panels"]
    (drift,) = (series for series in panel["series"] if series["name"] == "drift")
    assert drift["links"] == ["/drift/2026-01-03"]
    assert drift["evidence"] == ["statistic 7.5, threshold 7, effect 0.4"]
    first = reader.get("/drift-tests").json()["items"][0]
    assert (first["day"], first["detector"], first["verdict"]) == (
        *("2026-01-03", "sequential_test", "drift"),
    )
    assert first["evidence"]["events"] == [EVENT]
    assert reader.get("/drift-tests?day=2026-01-09").status_code == 404
    browser = paged.browser(paged.add(Role.ENGINEER))
    assert "Found a change" in browser.get(f"{paged.url}/drift").text
    page = browser.get(f"{paged.url}/drift/2026-01-03").text
    assert 'href="/votes?day=2026-01-03"' in page
    assert 'href="/drift/2026-01-02"' in page
    assert "is at most 0.01" in page
    assert "All are about reward model 1." in page
    for cell in ("≥ 0.2</td>", "0.3</td>", '<span class="tag bad">drift</span>'):
        assert cell in page, cell
