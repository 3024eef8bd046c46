"""Settings of the targets that alerts are sent to: log, e-mail, webhooks, apprise services."""

import json
import re
from collections.abc import Mapping, Sequence
from email.errors import MessageError
from email.headerregistry import Address
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

TARGET_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
LOG = "log"  # a target that exists without being configured


class Target(BaseModel):
    """What all targets share. Secrets stand in the settings or in a file that they name."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: str

    @field_validator("*")
    @classmethod
    def _check_file(cls, value: Any) -> Any:
        if not isinstance(value, Path):
            return value
        path = value.expanduser()
        if not path.is_absolute():
            raise ValueError("must be a full path; only rlhf.yaml may name a file beside itself")
        return path


class LogTarget(Target):
    """Writes alerts to the log of the process that sends them."""

    channel: Literal["log"]


class WebhookTarget(Target):
    """Posts alerts as JSON, signed as Standard Webhooks prescribes.

    `secret` holds one secret, or several separated by blanks while they are rotated; `secret_file`
    holds the same, read at each attempt.
    """

    channel: Literal["webhook"]
    url: SecretStr
    secret: SecretStr | None = None
    secret_file: Path | None = None

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: SecretStr) -> SecretStr:
        _check_web_address(url.get_secret_value())
        return url

    @model_validator(mode="after")
    def _check_secret(self) -> "WebhookTarget":
        require_one(self, "secret", "secret_file")
        return self


class EmailTarget(Target):
    """Sends alerts through a mail server (SMTP)."""

    channel: Literal["email"]
    host: str = Field(min_length=1, max_length=253)
    port: int = Field(default=587, ge=1, le=65_535)
    encryption: Literal["starttls", "tls", "none"] = "starttls"
    username: str | None = None
    password: SecretStr | None = None
    password_file: Path | None = None
    sender: str
    recipients: tuple[str, ...] = Field(min_length=1, max_length=50)

    @field_validator("sender")
    @classmethod
    def _check_sender(cls, sender: str) -> str:
        return _check_mail_address(sender)

    @field_validator("recipients", mode="before")
    @classmethod
    def _accept_one(cls, recipients: Any) -> Any:
        return (recipients,) if isinstance(recipients, str) else recipients

    @field_validator("recipients")
    @classmethod
    def _check_recipients(cls, recipients: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_check_mail_address(one) for one in recipients)

    @model_validator(mode="after")
    def _check_login(self) -> "EmailTarget":
        has_password = self.password is not None or self.password_file is not None
        if has_password != (self.username is not None):
            raise ValueError("username and password (or password_file) must be set together")
        if has_password:
            require_one(self, "password", "password_file")
            if self.encryption == "none":
                raise ValueError(
                    "encryption none would send the password in clear text; set starttls or tls"
                )
        return self


class AppriseTarget(Target):
    """Sends alerts to one of the services that the package `apprise` knows, by its URL."""

    channel: Literal["apprise"]
    url: SecretStr | None = None
    url_file: Path | None = None

    @model_validator(mode="after")
    def _check_secret(self) -> "AppriseTarget":
        require_one(self, "url", "url_file")
        return self


AlertTarget = Annotated[
    LogTarget | WebhookTarget | EmailTarget | AppriseTarget, Field(discriminator="channel")
]
_ADAPTER: TypeAdapter[AlertTarget] = TypeAdapter(AlertTarget)


def parse_targets(value: Any) -> tuple[AlertTarget, ...]:
    """Targets from a mapping of names to settings, or from its JSON, in their order.

    Raises ValueError, which repeats no value: any may be a secret.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as cause:
            raise ValueError(
                f"is not valid JSON (line {cause.lineno}, column {cause.colno})"
            ) from None
    value = {} if value is None else value
    if isinstance(value, Sequence) and all(isinstance(one, Target) for one in value):
        return tuple(value)
    if not isinstance(value, Mapping) or not all(isinstance(v, Mapping) for v in value.values()):
        raise ValueError("must map names to settings, such as {team: {channel: log}}")
    problems = []
    targets = []
    for name, settings in value.items():
        if not isinstance(name, str) or not TARGET_NAME.fullmatch(name):
            raise ValueError(
                "a name of a target is not lower-case letters, digits, - and _, at most 40"
            )
        try:
            targets.append(_ADAPTER.validate_python({**settings, "name": name}))
        except ValidationError as refusal:
            problems += [f"{name}: {problem}" for problem in _describe(refusal)]
    if problems:
        raise ValueError("; ".join(problems))
    return tuple(targets)


def format_targets(targets: Sequence[AlertTarget]) -> str:
    """The JSON that `parse_targets` reads, secrets included: for another process's environment."""
    return json.dumps(
        {
            target.name: {
                key: value.get_secret_value() if isinstance(value, SecretStr) else value
                for key, value in target.model_dump(exclude={"name"}, exclude_none=True).items()
            }
            for target in targets
        },
        default=str,
    )


def resolve_files(targets: Any, folder: Path) -> Any:
    """Make the files that targets in rlhf.yaml name relative to `folder`; invalid ones stay."""
    if not isinstance(targets, Mapping):
        return targets
    return {
        name: {
            key: str(folder / value)
            if str(key).endswith("_file") and isinstance(value, str) and value[:1] not in ("", "~")
            else value
            for key, value in settings.items()
        }
        if isinstance(settings, Mapping)
        else settings
        for name, settings in targets.items()
    }


def require_one(target: Target, value: str, file: str) -> None:
    """Raise ValueError unless exactly one of the two fields is set."""
    if (getattr(target, value) is None) == (getattr(target, file) is None):
        raise ValueError(f"set {value} or {file}, one of them")


def _check_web_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  raises ValueError
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_whole = False
    if not is_whole or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("is not an address such as https://example.org/alerts")
    if "@" in parts.netloc or parts.fragment:
        raise ValueError("may hold neither user:password@ nor #")


def _check_mail_address(address: str) -> str:
    try:
        parsed = Address(addr_spec=address)
    except (MessageError, ValueError, IndexError):
        parsed = None
    if parsed is None or not parsed.username or not parsed.domain or not address.isascii():
        raise ValueError("is not an address such as ann@example.org, without a name before it")
    return address


def _describe(refusal: ValidationError) -> list[str]:
    """Each invalid field with what was expected. The first part of a place is the channel's."""
    described = []
    for error in refusal.errors(include_input=False, include_url=False, include_context=False):
        if error["type"].startswith("union_tag"):
            lead = "no channel is set; it" if error["type"] == "union_tag_not_found" else "channel"
            described.append(f"{lead} must be log, webhook, email or apprise")
            continue
        place = ".".join(str(part) for part in error["loc"][1:])
        message = error["msg"].removeprefix("Value error, ")
        described.append(f"{place}: {message}" if place else message)
    return described
