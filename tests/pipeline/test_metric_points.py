"""A materialised day leaves metric points that equal the frames and records they come from."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import pandas as pd
import pytest

from rlhf_pipeline.core.records import Role
from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.server import WebServer


def test_page_api_and_mlflow_show_the_same_figures(grown: Any, branch: Callable[..., Any]) -> None:
    project = branch(grown)
    day, home = project.day(2), project.settings.home
    (logged,) = home.rglob(f"mlflow/**/calibration_over_time_{day}.csv")
    row = pd.read_csv(logged).set_index("day").loc[day]
    names = {name: f"model.{name}" for name in ("accuracy", "ece")}
    names["noise_ceiling"] = "model.accuracy_ceiling"
    reader = project.store.users.add(email="a@b.org", name="A", roles=[Role.ENGINEER], actor="test")
    token, _ = project.store.tokens.issue(
        reader.user_id, kind="api", lifetime=timedelta(hours=1), actor="test", name="test"
    )
    with WebServer(create_app(project.settings, project.store)) as server:
        client = httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {token}"})
        page = client.get("/alignment").text
        for name, point_name in names.items():
            points = client.get("/api/v1/metrics/points", params={"name": point_name}).json()
            by_api = next(point for point in points["items"] if point["day"] == day)
            figures = [by_api["value"], by_api["low"], by_api["high"]]
            assert figures == pytest.approx(list(row[[name, f"{name}_low", f"{name}_high"]]))
            assert f"{by_api['value']:.1%}" in page
