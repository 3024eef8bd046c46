"""Logging in, staying in, being put out: passwords, sessions, tokens, one-time links."""

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import httpx
import pytest
from argon2 import PasswordHasher, extract_parameters

from rlhf_pipeline.web.app import create_app
from rlhf_pipeline.web.auth import create_first_admin
from rlhf_pipeline.web.memory_cache import CacheTimes
from rlhf_pipeline.web.server import WebServer
from tests.web.conftest import UNCACHED, Web

PASSWORD = "correct horse battery"

# who was let in a moment ago
remembering = pytest.mark.parametrize("cache_times", [CacheTimes(token_s=60)], ids=["remembered"])


def with_password(web: Web, *roles: str, email: str | None = None) -> str:
    user = web.add(*roles, email=email)
    web.store.users.set_password(user.user_id, web.auth_hash(PASSWORD), actor="test")
    return user.email


def session_of(browser: httpx.Client) -> tuple[str, str]:
    """Name and value of its session cookie."""
    return next(
        (name, value) for name, value in browser.cookies.items() if name.startswith("rlhf_session_")
    )


def log_in(client: httpx.Client, email: str, password: str = PASSWORD) -> httpx.Response:
    return client.post("/auth/login", json={"email": email, "password": password})


def test_a_person_logs_in_and_out(web: Web):
    email = with_password(web, "annotator")
    browser = web.anonymous()
    browser.headers["Origin"] = web.url
    answer = log_in(browser, f" {email.upper()} ")
    assert answer.status_code == 204
    cookie = answer.headers["set-cookie"]
    assert all(word in cookie for word in ("rlhf_session_", "HttpOnly", "SameSite=lax", "Path=/"))
    assert browser.get("/me").json()["email"] == email
    stolen = dict(browser.cookies)
    assert browser.post("/auth/logout").status_code == 204
    assert browser.get("/me").status_code == 401
    # ended on the server too
    assert httpx.get(f"{web.url}/api/v1/me", cookies=stolen).status_code == 401


def test_cookies_are_secure_under_https(web: Web, settings, open_store):
    from rlhf_pipeline.web.app import create_app
    from rlhf_pipeline.web.server import WebServer

    store = open_store()
    secure = settings.model_copy(update={"web_url": "https://vote.example.org"})
    user = web.add("annotator")
    secret, _ = store.tokens.issue(
        user.user_id, kind="login", lifetime=timedelta(hours=1), actor="test"
    )
    with WebServer(create_app(secure, store, cache_times=UNCACHED)) as server:
        answer = httpx.post(
            f"{server.url}/api/v1/auth/redeem",
            json={"token": secret},
            headers={"Host": "vote.example.org"},
        )
    assert answer.status_code == 204
    assert answer.headers["set-cookie"].startswith("__Host-rlhf_session_")
    assert "Secure" in answer.headers["set-cookie"]
    assert "strict-transport-security" in answer.headers


def test_ten_wrong_passwords_lock_the_account(web: Web):
    email = with_password(web, "annotator")
    client = web.anonymous()
    answers = [log_in(client, email, "wrong") for _ in range(12)]
    assert [answer.status_code for answer in answers] == [401] * 10 + [429] * 2
    assert 0 < int(answers[-1].headers["retry-after"]) <= 31
    assert log_in(client, email).status_code == 429  # the right one waits too
    web.clock.shift = timedelta(seconds=35)
    assert log_in(client, email).status_code == 204


def test_attempts_for_many_accounts_are_limited_per_client(web: Web):
    client = web.anonymous()
    answers = [log_in(client, f"somebody{i}@example.org") for i in range(11)]
    assert [answer.status_code for answer in answers] == [401] * 10 + [429]
    assert log_in(client, with_password(web, "annotator")).status_code == 429


def test_unknown_user_costs_as_many_hashes_as_a_wrong_password(
    web: Web, monkeypatch: pytest.MonkeyPatch
):
    hashed: list[object] = []
    verify = PasswordHasher.verify

    def noted(hasher: PasswordHasher, known: str, password: str) -> bool:
        hashed.append(extract_parameters(known))
        return verify(hasher, known, password)

    monkeypatch.setattr(PasswordHasher, "verify", noted)
    known, disabled = (web.add("annotator") for _ in range(2))
    for user in (known, disabled):
        web.store.users.set_password(user.user_id, PasswordHasher().hash(PASSWORD), actor="test")
    web.store.users.change(disabled.user_id, disabled=True, actor="test")
    no_password = web.add("annotator")
    answers = set()
    for email in (known.email, disabled.email, no_password.email, "nobody@example.org"):
        answer = log_in(web.anonymous(), email, "wrong")
        answers.add((answer.status_code, answer.text))
    assert {status for status, _ in answers} == {401}
    assert (len(answers), len(hashed)) == (1, 4)
    assert all(cost == hashed[0] for cost in hashed)


def test_login_needs_a_password_and_an_enabled_user(web: Web):
    client = web.anonymous()
    assert log_in(client, web.add("annotator").email, "").status_code == 401
    email = with_password(web, "annotator")
    web.store.users.change(web.store.users.with_email(email).user_id, disabled=True, actor="test")
    assert log_in(client, email).status_code == 401


def test_only_the_first_start_creates_an_admin(web: Web, settings):
    email, link = create_first_admin(web.store, settings)
    assert create_first_admin(web.store, settings) is None
    browser = web.anonymous()
    assert (
        browser.post("/auth/redeem", json={"token": link.partition("token=")[2]}).status_code == 204
    )
    me = browser.get("/me").json()
    assert (me["roles"], me["email"]) == (["admin"], email)


def test_tokens_are_made_used_and_revoked_within_a_second(web: Web):
    ann = web.browser(web.add("annotator"))
    token = ann.post("/me/tokens", json={"name": "script", "days": 7}).json()
    script = httpx.Client(
        base_url=f"{web.url}/api/v1", headers={"Authorization": f"Bearer {token['secret']}"}
    )
    assert script.get("/me").status_code == 200
    assert [token["name"] for token in ann.get("/me/tokens").json()["items"]] == ["script"]
    assert ann.delete(f"/me/tokens/{token['token_id']}").status_code == 204
    assert script.get("/me").status_code == 401  # the process that revoked it knows at once
    token = ann.post("/me/tokens", json={"name": "script"}).json()
    script.headers["Authorization"] = f"Bearer {token['secret']}"
    assert script.get("/me").status_code == 200
    web.store.tokens.revoke(token["token_id"], actor="another process")
    start = time.monotonic()
    while script.get("/me").status_code == 200:
        assert time.monotonic() - start < 10  # half a second, and what a busy machine takes
    assert ann.delete(f"/me/tokens/{token['token_id'][:8]}").status_code == 404


def test_token_is_limited_to_its_scopes(web: Web):
    reader = web.client("curator", scopes=["votes.read", "tokens.own", "audit.read"])
    assert reader.get("/votes").status_code == 200
    assert reader.post("/cards:lease", json={}).status_code == 403
    assert reader.get("/audit").status_code == 403  # a scope brings nothing that its owner has not
    browser = web.browser(reader.user)
    assert (
        browser.post(
            "/me/tokens", json={"name": "wider", "scopes": ["votes.read", "audit.read"]}
        ).status_code
        == 403
    )
    narrower = browser.post(
        "/me/tokens", json={"name": "narrower", "scopes": ["votes.read"]}
    ).json()
    assert narrower["scopes"] == ["votes.read"]


def test_token_cannot_create_tokens(web: Web):
    ann = web.client("annotator", lasts=60)
    refused = ann.post("/me/tokens", json={"name": "longer", "days": 366})
    assert (refused.status_code, refused.json()["type"].endswith("no_session")) == (403, True)
    assert "rlhf users token" in refused.json()["detail"]
    assert len(web.store.tokens.of_user(ann.user.user_id)) == 1


def test_expired_token_is_refused(web: Web):
    ann = web.client("annotator", lasts=60)
    assert ann.get("/me").status_code == 200
    web.clock.shift = timedelta(minutes=2)
    answer = ann.get("/me")
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize(
    "header", ["Bearer rlhf_nope", "Bearer", "Basic YTpi", "rlhf_x", "Bearer \xff"]
)
def test_invalid_token_is_refused(web: Web, header: str):
    answer = web.anonymous().get("/me", headers={"Authorization": header.encode("latin-1")})
    assert answer.status_code == 401


def test_session_and_login_link_are_not_tokens(web: Web):
    user = web.add("annotator")
    for kind in ("session", "login"):
        secret, _ = web.store.tokens.issue(
            user.user_id, kind=kind, lifetime=timedelta(hours=1), actor="test"
        )
        assert (
            web.anonymous().get("/me", headers={"Authorization": f"Bearer {secret}"}).status_code
            == 401
        )


def test_unsigned_cookie_is_refused(web: Web):
    user = web.add("annotator")
    name, _ = session_of(web.browser(user))
    secret, _ = web.store.tokens.issue(
        user.user_id, kind="session", lifetime=timedelta(hours=1), actor="test"
    )
    for cookie in (secret, f"{secret}.x", "a.b.c", "", '"x"'):
        assert (
            web.anonymous().get("/me", headers={"Cookie": f"{name}={cookie}"}).status_code == 401
        ), cookie


def test_role_change_applies_to_the_next_request(web: Web):
    ann, admin = web.client("annotator"), web.client("admin")
    assert ann.get("/votes").status_code == 403
    assert web.change(admin, ann.user.user_id, roles=["curator"]).json()["roles"] == ["curator"]
    assert ann.get("/votes").status_code == 200
    assert web.change(admin, ann.user.user_id, disabled=True).status_code == 200
    assert ann.get("/votes").status_code == 401


def test_setting_a_password_needs_a_session(web: Web):
    user = web.add("annotator")
    browser, other = web.browser(user), web.browser(user)
    assert browser.post("/me/password", json={"new_password": "short"}).status_code == 422
    assert browser.post("/me/password", json={"new_password": PASSWORD}).status_code == 204
    assert browser.get("/me").status_code == 200  # this session goes on
    assert other.get("/me").status_code == 401  # the others ended
    assert browser.post("/me/password", json={"new_password": "something else"}).status_code == 403
    assert (
        browser.post(
            "/me/password", json={"old_password": "wrong", "new_password": "something else"}
        ).status_code
        == 403
    )
    assert (
        browser.post(
            "/me/password", json={"old_password": PASSWORD, "new_password": "something else"}
        ).status_code
        == 204
    )
    assert log_in(web.anonymous(), user.email, "something else").status_code == 204
    assert (
        web.client(user=user).post("/me/password", json={"new_password": PASSWORD}).status_code
        == 403
    )


def test_database_and_log_hold_no_secret(
    web: Web, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
):
    caplog.set_level(logging.DEBUG)
    for client in ("httpx", "httpcore"):  # of the test itself
        caplog.set_level(logging.WARNING, logger=client)
    email = with_password(web, "annotator")
    admin = web.browser(web.add("admin"))
    secrets = [web.client("admin").headers["Authorization"].partition(" ")[2]]
    secrets.append(
        admin.post("/users", json={"email": "new@example.org"})
        .json()["login_link"]
        .partition("token=")[2]
    )
    browser = web.anonymous()
    browser.headers["Origin"] = web.url
    assert log_in(browser, email).status_code == 204
    secrets.append(browser.post("/me/tokens", json={"name": "x"}).json()["secret"])
    web.anonymous().get(f"{web.url}/login", params={"token": secrets[1]})
    secrets += [PASSWORD, session_of(browser)[1]]
    log = "".join(
        record.getMessage()
        for record in caplog.records
        if not record.name.startswith(("httpx", "httpcore"))
    ) + "".join(capfd.readouterr())
    stored = b"".join(path.read_bytes() for path in web.settings.home.rglob("*") if path.is_file())
    for secret in secrets:
        assert secret not in log
        assert secret.encode() not in stored
    assert re.search(rb"[0-9a-f]{64}", stored)


def test_cookie_key_is_private(web: Web):
    path = web.settings.home / "web_secret"
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(path.read_text()) >= 43


# --- while an account is disabled
# ------------------------------------------------------------------------------------


@contextmanager
def after_commit(web: Web, n: int, act: Callable[[], object]) -> Iterator[list[int]]:
    """Have `act` done right after the server's n-th transaction from now on, or at once; which it
    was, once it was done.
    """
    database = web.store.database
    writing = web.store.database.write_transaction
    done = []
    left = n
    if n == 0:
        act()
        done.append(n)

    @contextmanager
    def interrupted() -> Iterator[object]:
        nonlocal left
        with writing() as connection:
            yield connection
        left -= 1
        if left == 0:
            act()
            done.append(n)

    database.write_transaction = interrupted
    try:
        yield done
    finally:
        del database.write_transaction


@pytest.mark.parametrize("way", ["password", "link", "new password", "token"])
def test_disabling_an_account_ends_requests_in_flight(web: Web, way: str):
    """A user with a password, a link or a session logs in while an admin disables the account: at
    whatever moment that is done, nothing that came of it holds afterwards. A server remembers a
    session for half a second."""
    web.add("admin")
    with WebServer(
        create_app(web.settings, web.store, cache_times=CacheTimes(token_s=60))
    ) as server:
        pages = Web(web.store, web.settings, server.url, web.clock)
        moments, n = [], -1
        while len(moments) == n + 1:
            n += 1
            email = with_password(web, "annotator", email=f"a{n}@example.org")
            user_id = web.store.users.with_email(email).user_id
            browser = pages.browser(web.store.users.get(user_id))
            link = pages.store.tokens.issue(
                user_id, kind="login", lifetime=timedelta(hours=1), actor="test"
            )[0]
            ways = {
                "password": lambda b, e=email: log_in(b, e),
                "link": lambda b, t=link: b.post("/auth/redeem", json={"token": t}),
                "new password": lambda b: b.post(
                    "/me/password",
                    json={"old_password": PASSWORD, "new_password": "chosen by another"},
                ),
                "token": lambda b: b.post("/me/tokens", json={"name": "mine"}),
            }
            assert browser.get("/me").status_code == 200  # remembered
            with after_commit(
                web,
                n,
                lambda u=user_id: web.store.users.change(u, disabled=True, actor="test"),
            ) as done:
                answer = ways[way](browser)
            browser.close()
            assert answer.status_code in (201, 204, 401), (n, answer.text)
            problems = {"urn:rlhf:problem:login_ended", "urn:rlhf:problem:wrong_login"}
            assert answer.status_code != 401 or answer.json()["type"] in problems, (n, answer.text)
            if done:
                assert [
                    token.kind
                    for token in web.store.tokens.of_user(user_id)
                    if token.revoked_at is None
                ] == [], n
            moments += done
    assert 2 <= len(moments) < 9


@remembering
def test_ended_session_creates_no_credentials(
    web: Web,
):
    root, ann = web.add("admin"), web.add("annotator")
    for path, body in (
        (f"/users/{ann.user_id}:login-link", None),
        ("/users", {"email": "new@example.org", "roles": ["admin"]}),
        ("/me/tokens", {"name": "mine"}),
        ("/me/password", {"new_password": PASSWORD}),
    ):
        browser = web.browser(root)
        session = next(
            token
            for token in web.store.tokens.of_user(root.user_id)
            if token.kind == "session" and token.revoked_at is None
        )
        assert browser.get("/me").status_code == 200
        web.store.tokens.revoke(session.token_id, actor="another process")
        answer = browser.post(path, json=body)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), path
        assert answer.json()["type"] == "urn:rlhf:problem:login_ended", path
    kinds = [
        token.kind
        for user in (root, ann)
        for token in web.store.tokens.of_user(user.user_id)
        if token.revoked_at is None
    ]
    assert (
        kinds,
        web.store.users.with_email("new@example.org"),
        web.store.users.get(root.user_id).has_password,
    ) == ([], None, False)
