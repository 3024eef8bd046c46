"""What the readiness check tells of store, registry and daemon."""

import threading
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from rlhf_pipeline.core.monitoring import MetricPoint
from rlhf_pipeline.core.records import utc_now
from rlhf_pipeline.store import Store
from rlhf_pipeline.web.readiness import find_registry_status
from tests.web.conftest import Web


def tick(store: Store, seconds_ago: float, value: float | None = 0.0) -> None:
    at = utc_now() - timedelta(seconds=seconds_ago)
    point = MetricPoint(day=at.date(), name="daemon.silent_seconds", value=value, measured_at=at)
    store.metric_points.put([point])


def ask(web: Web) -> dict[str, str]:
    answer = web.anonymous().get("/readyz")
    assert answer.status_code == 200
    return answer.json()


def test_readiness_names_each_part_and_no_secret(web: Web):
    assert ask(web) == {
        "status": "ok",
        "store": "ok",
        "registry": "absent",
        "daemon": "absent",
    }


@pytest.mark.parametrize(
    ("seconds_ago", "value", "status"),
    [(10, 0.0, "ok"), (170, 0.0, "ok"), (200, 0.0, "silent"), (10, None, "absent")],
)
def test_daemon_is_silent_after_three_missed_ticks(
    web: Web, seconds_ago: float, value: float | None, status: str
):
    tick(web.store, seconds_ago, value)
    assert ask(web)["daemon"] == status


def test_registry_in_a_database_responds_once_it_has_tables(tmp_path: Path, migrated: Path):
    assert find_registry_status(f"sqlite:///{tmp_path / 'mlflow.db'}") == "absent"
    assert find_registry_status(f"sqlite:///{migrated}") == "ok"
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"not a database" * 100)
    assert find_registry_status(f"sqlite:///{damaged}") == "unreachable"


@pytest.mark.parametrize(("code", "status"), [(200, "ok"), (401, "ok"), (502, "unreachable")])
def test_registry_behind_a_server_responds_if_its_health_check_does(code: int, status: str):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code if self.path == "/health" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        assert find_registry_status(f"http://127.0.0.1:{server.server_port}/") == status


def test_registry_at_a_closed_port_is_unreachable():
    assert find_registry_status("http://127.0.0.1:9") == "unreachable"
