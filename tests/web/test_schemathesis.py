"""Whatever is sent to any operation, the server does not break: requests made up from the OpenAPI
document by schemathesis.

All operations, by those who bear a token and by those who have a session; the stream of events is
read up to its first one.
"""

from collections import Counter

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.generation.case import Case
from schemathesis.specs.openapi import checks

from rlhf_pipeline.api_types.project import ProgressOut
from tests.web.conftest import Web
from tests.web.databases import on_sqlite

CHECKS = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
# of each operation, by how the caller is known: a minute for all
EXAMPLES = {"token": 8, "session": 5}
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

on_postgres = pytest.mark.parametrize("dialect", ["postgres"])
by_token_and_session = pytest.mark.parametrize("known_by", EXAMPLES)


@on_sqlite
@by_token_and_session
def test_no_request_breaks_the_server(web: Web, known_by: str, capsys: pytest.CaptureFixture[str]):
    _fuzz(web, known_by, capsys)


@on_postgres
def test_no_request_breaks_the_server_on_postgres(web: Web, capsys: pytest.CaptureFixture[str]):
    _fuzz(web, "session", capsys)


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


def _caller(web: Web, known_by: str) -> dict:
    """A new admin: what a request of theirs carries."""
    if known_by == "token":
        return {"headers": {"Authorization": web.client("admin").headers["Authorization"]}}
    browser = web.browser(web.add("admin"))
    browser.close()
    return {"headers": {"Origin": web.url}, "cookies": dict(browser.cookies)}


def _fuzz(web: Web, known_by: str, capsys: pytest.CaptureFixture[str]) -> None:
    web.publish(10)
    statuses: Counter[int] = Counter()
    not_refused: set[str] = set()
    operations = _operations(web)
    somebody = web.add("annotator").user_id
    for operation in operations:
        name = f"{operation.method.upper()} {operation.path}"
        ends = operation.path.endswith("/auth/logout")  # after which the next one is somebody new
        caller = _caller(web, known_by)
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
            max_examples=EXAMPLES[known_by],
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
            if known_by == "session":
                # a made-up one would be believed before the cookie
                case.headers.pop("Authorization", None)
                case.cookies.clear()
            if "user_id" in case.path_parameters and statuses.total() % 2:
                case.path_parameters["user_id"] = somebody
            if "428" in operation.definition.raw["responses"]:  # noqa: B023
                read = f"{web.url}{case.formatted_path}"
                found = httpx.get(read, **caller)  # noqa: B023
                case.headers["If-Match"] = found.headers.get("ETag", '"0"')
            answer = case.call(**(_caller(web, known_by) if ends else caller))  # noqa: B023
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
            f"\n{asked} requests to {len(operations)} operations by {known_by} on "
            f"{web.store.database.engine.dialect.name}; {told}; no 5xx"
        )
    assert asked >= 4 * len(operations)
    assert {200, 201, 404, 422} <= set(statuses)
    assert known_by == "token" or 204 in statuses, "nobody logged out"
    refused = {
        f"{operation.method.upper()} {operation.path}" for operation in operations
    } - not_refused
    # Made-up passwords and links log nobody in, and a token has no session to end and makes no
    # token; everything else was let through to its own checks.
    needs_session = {"POST /api/v1/auth/logout", "POST /api/v1/me/tokens"}
    no_session = needs_session if known_by == "token" else set()
    assert (
        refused
        <= {"POST /api/v1/auth/login", "POST /api/v1/auth/redeem", "POST /api/v1/me/password"}
        | no_session
    )
    assert web.store.audit.verify() > 0


@on_sqlite
@pytest.mark.parametrize(
    "path", ["/votes", "/comparisons", "/consensus", "/feedback", "/audit", "/me/votes"]
)
def test_filters_and_cursors_take_anything(web: Web, path: str):
    """Names of parameters that there are and that there are not, with values that mean something to
    a database.
    """
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

    @given(
        st.dictionaries(
            st.sampled_from(names), st.sampled_from(ODD) | st.text(max_size=30), max_size=4
        )
    )
    @settings(
        max_examples=40,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    def send(params: dict[str, str]) -> None:
        answer = admin.get(
            path,
            params={
                name: value.encode("utf-8", "replace").decode() for name, value in params.items()
            },
        )
        assert answer.status_code in (200, 422), answer.text[:500]

    send()
