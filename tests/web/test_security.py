"""Requests that should not be: from other sites, for other hosts, too large, too deep, not text."""

import http.client
import json
import time

import httpx
import pytest

from tests.web.conftest import Web

FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1"},
    {},  # neither said: no browser of today
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_cross_site_form_with_a_cookie_is_refused(web: Web, headers: dict[str, str]):
    web.publish(1)
    browser = web.browser(web.add("admin"))
    del browser.headers["Origin"]
    answers = [
        browser.post("/cards:lease", headers=headers),
        browser.post(
            "/users",
            content="email=x",
            headers={**headers, "Content-Type": "application/x-www-form-urlencoded"},
        ),
        browser.put("/rules", json={}, headers=headers),
        browser.delete("/me/tokens/x", headers=headers),
    ]
    assert [answer.status_code for answer in answers] == [403] * 4
    assert {answer.json()["type"] for answer in answers} == {"urn:rlhf:problem:foreign_origin"}
    assert web.store.cards.remaining_work().n_leased == 0


def test_own_pages_and_programs_are_allowed(web: Web):
    browser = web.browser(web.add("annotator"))
    assert browser.post("/cards:lease").status_code == 200
    del browser.headers["Origin"]
    assert (
        browser.post("/cards:lease", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
    )
    # a token is no cookie
    assert web.client("annotator").post("/cards:lease").status_code == 200
    assert browser.get("/me").status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "",
        "localhost@evil.example",
        "127.0.0.1:80:80",
        "[::2]:8080",
    ],
)
def test_foreign_host_header_is_refused(web: Web, host: str):
    answer = web.anonymous().get("/healthz", headers={"Host": host})
    assert answer.status_code == 400


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080"])
def test_own_host_names_are_accepted(web: Web, host: str):
    assert web.anonymous().get("/healthz", headers={"Host": host}).status_code == 200


def test_every_response_has_the_security_headers(web: Web):
    for path in ("/healthz", "/me", "/nope", "/votes"):
        answer = web.anonymous().get(path)
        csp = answer.headers["content-security-policy"]
        assert csp.startswith("default-src 'none'; script-src 'self'")
        assert "unsafe" not in csp
        assert (answer.headers["x-content-type-options"], answer.headers["referrer-policy"]) == (
            "nosniff",
            "same-origin",
        )
        assert (
            answer.headers["cross-origin-opener-policy"]
            == answer.headers["cross-origin-resource-policy"]
            == "same-origin"
        )
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers
    refused = web.anonymous().get("/healthz", headers={"Host": "evil.example"})
    assert "content-security-policy" in refused.headers


def test_declared_gigabyte_is_refused_unread(web: Web):
    ann = web.client("annotator")
    connection = http.client.HTTPConnection(ann.base_url.host, ann.base_url.port, timeout=120)
    connection.putrequest("POST", "/api/v1/votes")
    for name, value in (
        ("Authorization", ann.headers["Authorization"]),
        ("Content-Length", str(10**9)),
        ("Idempotency-Key", "k"),
    ):
        connection.putheader(name, value)
    connection.endheaders(b"{")
    answer = connection.getresponse()
    assert answer.status == 413
    assert json.loads(answer.read())["status"] == 413


def test_undeclared_gigabyte_is_cut_off(web: Web):
    ann = web.client("annotator")
    n_bytes = 0

    def endless():
        nonlocal n_bytes
        for _ in range(1000):
            n_bytes += 1_000_000
            yield b"x" * 1_000_000

    try:
        status = ann.post(
            "/votes",
            content=endless(),
            headers={"Idempotency-Key": "k", "Content-Type": "application/json"},
        ).status_code
    except httpx.HTTPError:  # the server hung up while we were still sending
        status = 413
    assert status == 413
    assert n_bytes < 100_000_000
    assert web.anonymous().get("/healthz").status_code == 200


BODIES = {
    "deep lists": b"[" * 400_000,
    "deep objects": b'{"a":' * 200_000,
    "deep and closed": b'{"card_id":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "no text": b'{"card_id": "\xff\xfe"}',
    "utf-16": '{"choice": "a"}'.encode("utf-16"),
    "half a character": b'{"card_id": "\\ud800", "choice": "a"}',
    "NUL": b'{"card_id": "a\\u0000b", "choice": "a"}',
    "not a number": b'{"card_id": "x", "choice": "a", "duration_s": NaN}',
    "endless": b'{"card_id": "x", "choice": "a", "duration_s": 1e999}',
    "huge integer": b'{"card_id": "x", "choice": "a", "strength": ' + b"9" * 100_000 + b"}",
    "many keys": b"{" + b",".join(b'"k%d":1' % i for i in range(100_000)) + b"}",
    "no json": b"<xml/>",
    "nothing": b"",
    "null": b"null",
}


TEXTS: dict[str, dict[str, object]] = {
    "/votes": {"comparison_id": "c0000", "choice": "a", "reason": "half"},
    "/comparisons:offer": {"ids": ["half"]},
    "/feedback": {"kind": "detailed", "text": "half", "completion": "x"},
    "/guidelines": {"text": "half"},
    "/users": {"email": "ann@example.org", "name": "half"},
    "/auth/login": {"email": "ann@example.org", "password": "half"},
    "/predictions": {"prompt": "half", "completion_a": "x", "completion_b": "y"},
}


@pytest.mark.parametrize("path", TEXTS)
def test_lone_surrogate_is_refused_by_field(web: Web, path: str):
    web.publish(1)
    body = json.dumps(TEXTS[path]).replace("half", "\\ud800")
    answer = web.client("admin").post(
        path,
        content=body,
        headers={"Content-Type": "application/json", "If-Match": '"0"', "Idempotency-Key": "k"},
    )
    assert answer.status_code == 422
    assert "half of a character" in answer.json()["detail"]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize(
    "path", ["/votes", "/votes:batch", "/feedback", "/comparisons:offer", "/users", "/auth/login"]
)
def test_invalid_body_is_refused_quickly(web: Web, path: str, body: bytes):
    admin = web.client("admin")
    start = time.monotonic()
    answer = admin.post(
        path, content=body, headers={"Idempotency-Key": "k", "Content-Type": "application/json"}
    )
    assert answer.status_code in (400, 404, 422), answer.text[:300]
    assert answer.headers["content-type"] == "application/problem+json"
    assert len(answer.content) < 20_000  # the bomb is not sent back
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "image/png",
        "",
    ],
)
def test_other_content_types_are_refused(web: Web, kind: str):
    answer = web.client("admin").post(
        "/feedback", content=b'{"kind": "detailed"}', headers={"Content-Type": kind}
    )
    assert answer.status_code in (400, 415, 422)
