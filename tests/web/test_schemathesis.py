"""Whatever is sent to any operation, the server does not break: requests made up from the OpenAPI document by schemathesis."""

from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.generation.case import Case
from schemathesis.specs.openapi import checks

from tests.web.conftest import Web
from tests.web.databases import on_sqlite

CHECKS = [
    schemathesis.checks.not_a_server_error, checks.status_code_conformance, checks.content_type_conformance, checks.response_schema_conformance,
]  # fmt: skip
EXAMPLES = 12  # of each operation: a minute for all
ODD = ["", "\x00", "'", '"; DROP TABLE votes; --', "1 OR 1=1", "%", "_", "..", "\ud7ff", "x" * 5000, "-1", "1e999", "null", "ü", "[]", "{}"]


def _operations(web: Web) -> list:
    schema = schemathesis.openapi.from_url(f"{web.url}/api/v1/openapi.json")
    return [found.ok() for found in schema.get_all_operations()]


@on_sqlite
def test_no_request_breaks_the_server(web: Web):
    _fuzz(web)


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_no_request_breaks_the_server_on_postgres(web: Web):
    _fuzz(web)


def _fuzz(web: Web) -> None:
    web.publish(10)
    asked = 0
    statuses: Counter[int] = Counter()
    for operation in _operations(web):
        if operation.path.endswith(("/progress/events", "/auth/logout", "/audit/export")):  # endless, ends the session, long
            continue
        admin = web.client("admin")
        cards = admin.post("/assignments:lease", json={"n": 1}).json()["cards"]
        # Names that are there: with made-up ones alone every vote would end at "not found".
        real = {
            "assignment_id": cards[0]["assignment_id"] if cards else None,
            "ids": ["c0001"],
            "completion": "text",
            "email": "a@b.example",
        }
        broken: list[str] = []

        @given(case=operation.as_strategy())
        @settings(
            max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        def send(case: Case) -> None:
            nonlocal asked
            asked += 1
            if isinstance(case.body, dict):
                case.body |= {name: value for name, value in real.items() if name in case.body}  # noqa: B023
            answer = case.call(headers={"Authorization": admin.headers["Authorization"]})  # noqa: B023
            statuses[answer.status_code] += 1
            if answer.status_code >= 500:
                broken.append(f"{case.method} {case.formatted_path} -> {answer.status_code}: {answer.text[:300]}")  # noqa: B023
            case.validate_response(answer, checks=CHECKS)

        send()
        assert not broken, broken[0]
        assert web.anonymous().get("/healthz").status_code == 200
    assert asked > 250
    assert {200, 201, 404, 422} <= set(statuses)
    assert web.store.audit.verify() > 0


@on_sqlite
@pytest.mark.parametrize("path", ["/votes", "/comparisons", "/consensus", "/feedback", "/audit", "/me/votes"])
def test_filters_and_cursors_take_anything(web: Web, path: str):
    """Names of parameters that there are and that there are not, with values that mean something to a database."""
    web.publish(3)
    admin = web.client("admin")
    names = [
        "cursor",
        "limit",
        "q",
        "day",
        "annotator_id",
        "comparison_id",
        "actor",
        "action",
        "object_id",
        "kind",
        "session_id",
        "order_by",
        "sort",
        "state",
        "method",
    ]

    @given(st.dictionaries(st.sampled_from(names), st.sampled_from(ODD) | st.text(max_size=30), max_size=4))
    @settings(max_examples=40, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def send(params: dict[str, str]) -> None:
        answer = admin.get(path, params={name: value.encode("utf-8", "replace").decode() for name, value in params.items()})
        assert answer.status_code in (200, 422), answer.text[:500]

    send()
