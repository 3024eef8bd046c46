"""Cookies and lockouts of `web.auth`, without a server."""

from datetime import timedelta
from http.cookies import SimpleCookie

import pytest
from argon2 import PasswordHasher
from starlette.requests import Request
from starlette.responses import Response

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.records import User
from rlhf_pipeline.store import Store
from rlhf_pipeline.web.auth import Auth
from rlhf_pipeline.web.problems import Problem
from tests.unit.web.conftest import ShiftedClock

PASSWORD = "correct horse battery"
OFFICE = "192.0.2.1"
FAST = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)


@pytest.fixture
def auth(store: Store, settings: Settings) -> Auth:
    return Auth(store, settings, FAST)


def add(store: Store, email: str) -> User:
    user = store.users.add(email=email, name=email, actor="test")
    store.users.set_password(user.user_id, FAST.hash(PASSWORD), actor="test")
    return user


def cookies_of(response: Response) -> dict[str, str]:
    jar = SimpleCookie()
    for name, value in response.raw_headers:
        if name == b"set-cookie":
            jar.load(value.decode())
    return {name: morsel.value for name, morsel in jar.items()}


def log_in(
    auth: Auth, email: str, password: str = PASSWORD, *, device: str | None = None
) -> Response:
    response = Response()
    auth.log_in(response, email, password, address=OFFICE, device=device)
    return response


def lock_out(auth: Auth, email: str, *, device: str | None = None) -> Problem:
    """Type wrong passwords until one has to wait."""
    for _ in range(11):
        with pytest.raises(Problem) as refused:
            log_in(auth, email, "wrong", device=device)
    assert refused.value.status == 429
    return refused.value


def test_known_device_gets_past_a_locked_address_and_account(auth: Auth, store: Store):
    ann = add(store, "ann@example.org")
    device = cookies_of(log_in(auth, ann.email))[auth.device_cookie]
    lock_out(auth, ann.email)
    with pytest.raises(Problem, match="Too many failed logins"):
        log_in(auth, ann.email)
    log_in(auth, ann.email, device=device)
    with pytest.raises(Problem, match="Too many failed logins"):
        log_in(auth, ann.email)  # the device's login does not unlock the others


def test_one_time_link_gets_past_a_locked_address(auth: Auth, store: Store):
    ann = add(store, "ann@example.org")
    refused = lock_out(auth, ann.email)
    assert "login link" in refused.detail
    secret, _ = store.tokens.issue(
        ann.user_id, kind="login", lifetime=timedelta(hours=1), actor="test"
    )
    response = Response()
    auth.redeem(response, secret)
    assert auth.cookie in cookies_of(response)
    log_in(auth, ann.email, device=cookies_of(response)[auth.device_cookie])


def test_lockout_never_exceeds_five_minutes(auth: Auth, store: Store, clock: ShiftedClock):
    ann = add(store, "ann@example.org")
    for _ in range(30):
        with pytest.raises(Problem):
            log_in(auth, ann.email, "wrong")
        clock.shift += timedelta(minutes=16)
    clock.shift -= timedelta(minutes=16)
    assert 0 < int(lock_out(auth, ann.email).headers["Retry-After"]) <= 301
    clock.shift += timedelta(minutes=5, seconds=1)
    log_in(auth, ann.email)


def test_homes_on_one_host_have_cookies_of_their_own(store: Store, settings: Settings):
    here = Auth(store, settings, FAST)
    other = Auth(store, settings.model_copy(update={"home": settings.home / "other"}), FAST)
    assert here.cookie.startswith("rlhf_session_")
    assert len({here.cookie, here.device_cookie, other.cookie, other.device_cookie}) == 4
    assert Auth(store, settings, FAST).cookie == here.cookie  # after a restart
    ann = add(store, "ann@example.org")
    both = cookies_of(log_in(here, ann.email)) | cookies_of(log_in(other, ann.email))
    header = "; ".join(f"{name}={value}" for name, value in both.items())
    request = Request({"type": "http", "headers": [(b"cookie", header.encode())]})
    for auth in (here, other):
        secret = auth.secret_of(request)
        assert secret is not None
        principal = auth.find_principal(secret, from_cookie=True)
        assert principal is not None
        assert principal.user_id == ann.user_id


def test_https_cookies_are_bound_to_their_host(store: Store, settings: Settings):
    auth = Auth(store, settings.model_copy(update={"web_url": "https://vote.example.org"}), FAST)
    response = log_in(auth, add(store, "ann@example.org").email)
    assert set(cookies_of(response)) == {auth.cookie, auth.device_cookie}
    set_cookies = [value.decode() for name, value in response.raw_headers if name == b"set-cookie"]
    assert all(
        cookie.startswith("__Host-rlhf_")
        and "Secure" in cookie
        and "HttpOnly" in cookie
        and "Path=/" in cookie
        for cookie in set_cookies
    )
