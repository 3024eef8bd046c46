"""Settings of the targets that alerts are sent to: the log, webhooks, apprise services."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

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

LOG = "log"  # a target that exists without being configured
NEEDED = {"log": (), "webhook": ("url", "secret"), "apprise": ("url",)}
# ASCII, with a host and without blanks and @
WEB_ADDRESS = re.compile(
    r"https?://([\w.-]+|\[[\da-fA-F:.]+\])(:[1-9]\d{0,4})?([/?][!-?A-~]*)?", re.ASCII
)


TargetName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,39}$")]


class AlertTarget(BaseModel):
    """One receiver of alerts. Secrets stand in the settings, or in a file that they name, which is
    read at each attempt.

    A webhook has the secret that signs its messages, or several separated by blanks while they are
    rotated. Mail and chat are `apprise`: their URL contains the password.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: str = ""  # its key in `alert_targets`
    channel: Literal["log", "webhook", "apprise"]
    url: SecretStr | None = None
    url_file: Path | None = None
    secret: SecretStr | None = None
    secret_file: Path | None = None
    allow_private: bool = False  # of a webhook: private addresses and loopback, there also by http

    @field_validator("url_file", "secret_file")
    @classmethod
    def _check_file(cls, file: Path | None) -> Path | None:
        if file is not None and not file.expanduser().is_absolute():
            raise ValueError("must be a full path; only rlhf.yaml may name a file beside itself")
        return file and file.expanduser()

    @model_validator(mode="after")
    def _check_channel(self) -> Self:
        for name in ("url", "secret"):
            n_set = sum(getattr(self, field) is not None for field in (name, f"{name}_file"))
            if name not in NEEDED[self.channel] and n_set:
                raise ValueError(f"the channel {self.channel} has no {name}; remove it")
            if name in NEEDED[self.channel] and n_set != 1:
                raise ValueError(f"set {name} or {name}_file, one of them")
        url = self.url.get_secret_value() if self.url and self.channel == "webhook" else None
        if url is not None and not WEB_ADDRESS.fullmatch(url):
            raise ValueError(
                "url is not an address such as https://example.org/alerts without user:@"
            )
        return self


TARGETS = TypeAdapter(dict[TargetName, AlertTarget])


def parse_targets(value: Any) -> tuple[AlertTarget, ...]:
    """Targets from a mapping of names to settings, in their order.

    Raises ValueError, which repeats no value: any may be a secret.
    """
    if isinstance(value, tuple):
        return value
    try:
        targets = TARGETS.validate_python(value)
    except ValidationError as refusal:
        problems = [
            f"{' '.join(map(str, error['loc']))}: {error['msg'].removeprefix('Value error, ')}"
            for error in refusal.errors(include_input=False, include_context=False)
        ]
        raise ValueError("; ".join(problems)) from None
    return tuple(target.model_copy(update={"name": name}) for name, target in targets.items())


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
