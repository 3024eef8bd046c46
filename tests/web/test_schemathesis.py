"""Answers to requests made up from the OpenAPI document by schemathesis keep to that document.

All operations, by a session; the stream of events is read up to its first one.
"""

from collections import Counter

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.generation.case import Case
from schemathesis.specs.openapi import checks

from rlhf_pipeline.api_types.project import ProgressOut
from tests.web.conftest import Web

CHECKS = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
N_EXAMPLES = 5  # of each operation: a minute for all
ODD = [
    "",
    "\x00",
    "'",
    '"; DROP TABLE votes; --',
    "1 OR 1=1",
    "%",
    "_",
    "..",
    "\ud7ff",
    "x" * 5000,
    "-1",
    "1e999",
    "null",
    "ü",
    "[]",
    "{}",
]


def _operations(web: Web) -> list:
    """Every one of the document."""
    schema = schemathesis.openapi.from_url(f"{web.url}/api/v1/openapi.json")
    schema.config.max_stream_events = 1  # of a stream that would never end
    found = [found.ok() for found in schema.get_all_operations()]
    document = web.anonymous().get("/openapi.json").json()
    every = {
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    }
    assert {(operation.method.upper(), operation.path) for operation in found} == every
    return found


def _caller(web: Web) -> dict:
    """A new admin's session: what a request of theirs carries."""
    browser = web.browser(web.add("admin"))
    browser.close()
    return {"headers": {"Origin": web.url}, "cookies": dict(browser.cookies)}


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_every_answer_keeps_to_the_document(web: Web, capsys: pytest.CaptureFixture[str]) -> None:
    web.publish(10)
    statuses: Counter[int] = Counter()
    not_refused: set[str] = set()
    operations = _operations(web)
    somebody = web.add("annotator").user_id
    for operation in operations:
        name = f"{operation.method.upper()} {operation.path}"
        ends = operation.path.endswith("/auth/logout")  # after which the next one is somebody new
        caller = _caller(web)
        cards = httpx.post(f"{web.url}/api/v1/assignments:lease", json={"n": 1}, **caller).json()[
            "cards"
        ]
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
            max_examples=N_EXAMPLES,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def send(case: Case) -> None:
            if isinstance(case.body, dict):
                case.body |= {
                    name: value
                    for name, value in real.items()  # noqa: B023
                    if name in case.body
                }
            # a made-up one would be believed before the cookie
            case.headers.pop("Authorization", None)
            case.cookies.clear()
            if "user_id" in case.path_parameters and statuses.total() % 2:
                case.path_parameters["user_id"] = somebody
            if "428" in operation.definition.raw["responses"]:  # noqa: B023
                read = f"{web.url}{case.formatted_path}"
                found = httpx.get(read, **caller)  # noqa: B023
                case.headers["If-Match"] = found.headers.get("ETag", '"0"')
            answer = case.call(**(_caller(web) if ends else caller))  # noqa: B023
            statuses[answer.status_code] += 1
            if answer.status_code not in (401, 403):
                not_refused.add(name)
            if answer.status_code >= 500:
                broken.append(  # noqa: B023
                    f"{case.method} {case.formatted_path} -> {answer.status_code}: "
                    f"{answer.text[:300]}"
                )
            if (
                operation.path.endswith("/progress/events")  # noqa: B023
                and answer.status_code == 200
            ):
                # A document of OpenAPI 3.1 has no words for one event: it says that the stream is
                # text.
                case.validate_response(answer, checks=CHECKS[:-1])
                events = [
                    line.removeprefix("data: ")
                    for line in answer.text.splitlines()
                    if line.startswith("data: ")
                ]
                assert [
                    ProgressOut.model_validate_json(event).work.n_comparisons for event in events
                ] == [10]
            else:
                case.validate_response(answer, checks=CHECKS)

        send()
        assert not broken, broken[0]
        assert web.anonymous().get("/healthz").status_code == 200
    asked = statuses.total()
    with capsys.disabled():
        told = ", ".join(f"{status}: {n}" for status, n in sorted(statuses.items()))
        print(
            f"\n{asked} requests to {len(operations)} operations on "
            f"{web.store.database.engine.dialect.name}; {told}; no 5xx"
        )
    assert asked >= 4 * len(operations)
    assert {200, 201, 404, 422} <= set(statuses)
    assert 204 in statuses, "nobody logged out"
    refused = {
        f"{operation.method.upper()} {operation.path}" for operation in operations
    } - not_refused
    # Made-up passwords and links log nobody in; everything else was let through to its own checks.
    assert refused <= {
        "POST /api/v1/auth/login",
        "POST /api/v1/auth/redeem",
        "POST /api/v1/me/password",
    }
