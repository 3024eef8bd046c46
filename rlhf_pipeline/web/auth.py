"""Authenticates requests: passwords, sessions in signed cookies, API tokens and login links."""

import hmac
import os
import secrets
import threading
from datetime import timedelta
from functools import cached_property
from itertools import count
from pathlib import Path

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from itsdangerous import BadData, URLSafeSerializer
from starlette.requests import HTTPConnection
from starlette.responses import Response

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.files import write_atomically
from rlhf_pipeline.core.records import Role, Token, User
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.tokens import PREFIX
from rlhf_pipeline.web.memory_cache import CacheTimes, ExpiringCache
from rlhf_pipeline.web.permissions import Permission, Principal, permissions_of
from rlhf_pipeline.web.problems import Problem

SECRET_FILE = "web_secret"
# prefix of the name of every home's session cookie, after `__Host-` where the app has https
SESSION = "rlhf_session"
DEVICE = "rlhf_device"  # likewise, of the cookie that identifies a user's browser
SESSION_LASTS = timedelta(days=7)
DEVICE_LASTS = timedelta(days=180)
LOGIN_LINK_LASTS = timedelta(hours=24)
LEAST_PASSWORD = 10
MOST_PASSWORD = 1000  # characters: a longer password would make hashing a denial of service
HASHES_AT_ONCE = 2  # each takes 64 MB


class Auth:
    """Logs users in and issues sessions and tokens. The store keeps only hashes of secrets."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        hasher: PasswordHasher | None = None,
        *,
        known_for_s: float = CacheTimes.token_s,
    ):
        self._store = store
        self._hasher = hasher or PasswordHasher()
        self._hashing = threading.BoundedSemaphore(HASHES_AT_ONCE)
        secret = _load_signing_key(settings.home / SECRET_FILE)
        self._signer = URLSafeSerializer(secret, salt="session")
        self._device_signer = URLSafeSerializer(secret, salt="device")
        self._known = ExpiringCache[str, Principal](10_000, known_for_s)
        self.is_secure = settings.web_url.startswith("https:")
        # Browsers ignore the port: two homes on one host would overwrite each other's cookies.
        # Derived from the signing key: homes that joined each other share all else, and neither can
        # read what the other signed.
        home = hmac.digest(secret.encode(), b"cookies", "sha256").hex()[:8]
        prefix = "__Host-" if self.is_secure else ""
        self.cookie = f"{prefix}{SESSION}_{home}"
        self.device_cookie = f"{prefix}{DEVICE}_{home}"

    @cached_property
    def _dummy_password_hash(self) -> str:
        """Checked for unknown users, so that the check takes as long as for known ones."""
        return self._hasher.hash(secrets.token_urlsafe(16))

    def secret_of(self, request: HTTPConnection) -> str | None:
        """The token of a request, from its Authorization header or its signed cookie; None without
        one.
        """
        header = request.headers.get("authorization")
        if header is not None:
            scheme, _, secret = header.partition(" ")
            return (
                secret.strip() if scheme.lower() == "bearer" and secret.startswith(PREFIX) else ""
            )
        signed = request.cookies.get(self.cookie)
        if signed is None:
            return None
        return "" if self._unsign(signed) is None else signed

    def cached_principal(self, secret: str) -> Principal | None:
        """Principal of a token that was checked less than half a second ago; a session counts only
        with its signed cookie.
        """
        return self._known.get(secret)

    def find_principal(self, secret: str, *, from_cookie: bool) -> Principal | None:
        """The owner of a valid token; None if the token is unknown, expired, revoked or of the
        wrong kind.
        """
        bare = self._unsign(secret) if from_cookie else secret
        token = None if bare is None else self._store.tokens.find(bare)
        if token is None or token.kind != ("session" if from_cookie else "api"):
            return None
        user = self._store.users.get(token.user_id)
        allowed = permissions_of(user.roles)
        if user.paused_at is not None:
            allowed -= {Permission.VOTES_CAST}
        if token.scopes is not None:
            allowed = frozenset(
                permission for permission in allowed if permission.value in token.scopes
            )
        principal = Principal(user, token, allowed)
        self._known.put(secret, principal)
        return principal

    def forget(self) -> None:
        """Clears the cache of principals after a change of permissions."""
        self._known.clear()

    def log_in(
        self,
        response: Response,
        email: str,
        password: str,
        *,
        address: str,
        device: str | None = None,
    ) -> None:
        """Starts a session. `device` is the device cookie of the request: a browser in which the
        user logged in before has its own counter, so that failed attempts elsewhere do not lock it
        out.

        Raises Problem 401 for a wrong password or an unknown user, 429 after too many attempts;
        LoginEnded if the password changed meanwhile.
        """
        try:
            user = self._store.users.with_email(email)
        except ConfigurationError:
            user = None
        device_id = self._device_id(device, user)
        counted = (
            [_email_key(email, user), f"address:{address}"]
            if device_id is None
            else [f"device:{device_id}"]
        )
        self._count_try(*counted)
        nobody = self._dummy_password_hash
        stored_hash = (
            None
            if user is None or user.disabled_at is not None
            else self._store.users.password_hash(user.user_id)
        )
        is_right = self._matches(stored_hash or nobody, password)
        if user is None or stored_hash is None or not is_right:
            raise Problem(
                401,
                "Wrong e-mail address or password. Try again, or ask an admin for a login link.",
                kind="wrong_login",
            )
        self._store.failed_logins.forget(*counted)
        if self._hasher.check_needs_rehash(stored_hash):
            old, stored_hash = stored_hash, self.hash_password(password)
            self._store.users.set_password(
                user.user_id, stored_hash, actor=user.user_id, instead_of=old
            )
        self.start_session(response, user, password_hash=stored_hash)
        self._remember_device(response, user.user_id, device_id)

    def redeem(self, response: Response, secret: str) -> None:
        """Starts a session with a login link. Raises Problem 401 for an invalid link.

        Attempts are not counted: 256 random bits cannot be guessed, and a link must let in a user
        whom failed passwords locked out.
        """
        session = self._store.tokens.exchange(secret, lifetime=SESSION_LASTS)
        if session is None:
            raise Problem(
                401,
                "This login link was already used or has expired. Ask an admin for a new one.",
                kind="wrong_login",
            )
        self._set_session_cookie(response, session[0])
        self._remember_device(response, session[1].user_id, None)

    def check_password(self, user: User, password: str | None) -> None:
        """Raises Problem 403 for a wrong password, 429 after too many attempts. Users without a
        password pass.
        """
        stored_hash = self._store.users.password_hash(user.user_id)
        if stored_hash is None:
            return
        counted = _email_key(user.email, user)
        self._count_try(counted)
        if not self._matches(stored_hash, password or ""):
            raise Problem(
                403,
                "The old password is wrong.",
                kind="wrong_login",
                errors=[("body.old_password", "is wrong")],
            )
        self._store.failed_logins.forget(counted)

    def hash_password(self, password: str) -> str:
        """Raises Problem 422 for a password that is too short."""
        if not LEAST_PASSWORD <= len(password) <= MOST_PASSWORD:
            rule = f"must have {LEAST_PASSWORD} to {MOST_PASSWORD} characters"
            raise Problem(
                422, f"The password {rule}.", kind="invalid", errors=[("body.new_password", rule)]
            )
        with self._hashing:
            return self._hasher.hash(password)

    def start_session(self, response: Response, user: User, *, password_hash: str) -> None:
        """Raises LoginEnded if the password used for the login is no longer valid."""
        secret, _ = self._store.tokens.issue(
            user.user_id,
            kind="session",
            lifetime=SESSION_LASTS,
            actor=user.user_id,
            password_hash=password_hash,
        )
        self._set_session_cookie(response, secret)

    def _set_session_cookie(self, response: Response, secret: str) -> None:
        self._set_cookie(response, self.cookie, self._signer.dumps(secret), SESSION_LASTS)

    def _remember_device(self, response: Response, user_id: str, device_id: str | None) -> None:
        """Sets a signed cookie that names the user:
        https://owasp.org/www-community/Slow_Down_Online_Guessing_Attacks_with_Device_Cookies
        """
        signed = self._device_signer.dumps([user_id, device_id or secrets.token_hex(8)])
        self._set_cookie(response, self.device_cookie, signed, DEVICE_LASTS)

    def _device_id(self, cookie: str | None, user: User | None) -> str | None:
        """None for a browser in which this user never logged in."""
        try:
            user_id, device_id = self._device_signer.loads(cookie or "")
        except BadData:
            return None
        return str(device_id) if user is not None and user_id == user.user_id else None

    def _set_cookie(self, response: Response, name: str, value: str, lasts: timedelta) -> None:
        response.set_cookie(
            name,
            value,
            max_age=int(lasts.total_seconds()),
            path="/",
            secure=self.is_secure,
            httponly=True,
            samesite="lax",
        )

    def end_session(self, response: Response, principal: Principal) -> None:
        self._store.tokens.revoke(principal.token.token_id, actor=principal.user_id)
        self.forget()
        response.delete_cookie(
            self.cookie, path="/", secure=self.is_secure, httponly=True, samesite="lax"
        )

    def create_login_link(
        self, user_id: str, web_url: str, principal: Principal
    ) -> tuple[str, Token]:
        """A login link and its token. Raises LoginEnded if the caller's own login ended."""
        secret, token = self._store.tokens.issue(
            user_id,
            kind="login",
            lifetime=LOGIN_LINK_LASTS,
            actor=principal.user_id,
            asked_by=principal.token.token_id,
        )
        return _login_url(web_url, secret), token

    def _count_try(self, *who: str) -> None:
        wait = self._store.failed_logins.attempt(*who)
        if wait > 0:
            seconds = str(int(wait) + 1)
            raise Problem(
                429,
                f"Too many failed logins. Retry in {seconds} s, or ask an admin for a login link, "
                "which works at once.",
                kind="too_many_tries",
                headers={"Retry-After": seconds},
            )

    def _unsign(self, cookie: str) -> str | None:
        try:
            return str(self._signer.loads(cookie))
        except BadData:
            return None

    def _matches(self, stored_hash: str, password: str) -> bool:
        with self._hashing:
            try:
                return self._hasher.verify(stored_hash, password[:MOST_PASSWORD])
            except (VerificationError, InvalidHashError, UnicodeEncodeError):
                return False


def create_first_admin(store: Store, settings: Settings) -> tuple[str, str] | None:
    """Creates an admin if no usable admin account exists, and returns its e-mail address and a
    login link; else returns None.
    """
    users = store.users.all()
    if any(Role.ADMIN in user.roles and user.disabled_at is None for user in users):
        return None
    emails = {user.email for user in users}
    email = next(
        address
        for n in count(1)
        if (address := f"admin{n if n > 1 else ''}@localhost") not in emails
    )
    admin = store.users.add(email=email, name="Admin", roles=[Role.ADMIN], actor="setup")
    secret, _ = store.tokens.issue(
        admin.user_id, kind="login", lifetime=LOGIN_LINK_LASTS, actor="setup"
    )
    return email, _login_url(settings.web_url, secret)


def _email_key(email: str, user: User | None) -> str:
    """Key of an account's counter of failed logins: its stored address, however it was typed."""
    return f"email:{(email if user is None else user.email).strip().lower()}"


def _login_url(web_url: str, secret: str) -> str:
    return f"{web_url.rstrip('/')}/login?token={secret}"


def _load_signing_key(path: Path) -> str:
    """Load the key that signs cookies; created once, readable only by its owner."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        previous = os.umask(0o077)
        try:
            write_atomically(path, secrets.token_urlsafe(48).encode())
        finally:
            os.umask(previous)
        path.chmod(0o600)
    return path.read_text().strip()
