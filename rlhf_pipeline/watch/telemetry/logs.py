"""Writes log lines, from the level of the settings, without the secrets of these."""

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TextIO
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.secret_files import provider_key, read_secret
from rlhf_pipeline.core.terminal import escape_controls

# other libraries write warnings and errors only
OURS = "rlhf_pipeline"
# Dagster's processes have their own handlers for these.
OF_DAGSTER = ("dagster", "dagster-webserver")
LEAST_TOKEN = 6  # of a URL of apprise, whose shorter parts may be ordinary words
LEAST_SECRET = 4  # characters; replacing shorter ones would hide half of every line
SECRET_PARAMETER = re.compile("pass|key|token|secret", re.IGNORECASE)
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class SecretFilter:
    """Replaces the secrets of the settings, and of the files that they name, in lines of any
    logger, and in alerts. A file that has changed is read again; its earlier secret stays hidden.
    """

    def __init__(self, settings: Settings):
        self._settings = settings
        targets = settings.alert_targets
        self._names = [target.name for target in targets]
        files = [file for target in targets for file in (target.url_file, target.secret_file)]
        self._files = [file for file in (settings.api_key_file, *files) if file is not None]
        self._secrets: list[str] = []
        self._changed_at: list[int] | None = None  # of each file; None: not read yet

    def hide(self, text: str) -> str:
        changed_at = [_find_change(file) for file in self._files]
        if changed_at != self._changed_at:
            # a target's name may stand in its address too, and log lines name targets
            secrets = {
                secret
                for secret in _find_secrets(self._settings)
                if len(secret) >= LEAST_SECRET and not any(secret in name for name in self._names)
            }
            self._secrets = sorted({*self._secrets, *secrets}, key=len, reverse=True)
            self._changed_at = changed_at
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return text


class TextFormatter(logging.Formatter):
    """Time, level, logger and message; a traceback follows on lines of its own."""

    def __init__(self, secrets: SecretFilter):
        super().__init__(TEXT)
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        return self._secrets.hide(escape_controls(super().format(record)))


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what stderr is at the moment."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def configure_logs(settings: Settings) -> None:
    """Write this process's log lines from the level of the settings. Safe to repeat; the last
    settings count.
    """
    root = logging.getLogger()
    for previous in [h for h in root.handlers if isinstance(h, StderrHandler)]:
        root.removeHandler(previous)
    handler = build_handler(settings)
    handler.addFilter(lambda record: record.name.partition(".")[0] not in OF_DAGSTER)
    # some libraries, Great Expectations among them, set the level of their loggers themselves
    handler.addFilter(
        lambda record: record.levelno >= logging.WARNING or record.name.partition(".")[0] == OURS
    )
    root.addHandler(handler)
    level = (settings.log_level or "warning").upper()
    root.setLevel("ERROR" if level == "ERROR" else "WARNING")
    for name in (OURS,):
        logging.getLogger(name).setLevel(level)


def build_handler(settings: Settings) -> StderrHandler:
    """A handler that writes to stderr without the secrets of the settings."""
    handler = StderrHandler()
    handler.setFormatter(TextFormatter(SecretFilter(settings)))
    return handler


def _find_change(file: Path) -> int:
    """When the file changed, in ns; 0 if there is none."""
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def _find_secrets(settings: Settings) -> Iterator[str]:
    """Secret values, each word of them, passwords and secret parameters of URLs, and whatever may
    be a token in the address of a target.
    """
    for target in settings.alert_targets:
        with suppress(ConfigurationError):  # the code that uses the secret says so
            yield from _split_address(read_secret(target.url, target.url_file))
        with suppress(ConfigurationError):
            yield from read_secret(target.secret, target.secret_file).split()
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        plain = value.get_secret_value() if isinstance(value, SecretStr) else value
        if isinstance(plain, str) and "://" in plain:
            yield from _find_url_secrets(plain)
        elif isinstance(value, SecretStr):
            yield from (plain, *plain.split())
            for header in [unquote(pair.partition("=")[2]) for pair in plain.split(",")]:
                yield from (header, header.rpartition(" ")[2])
    with suppress(ConfigurationError):
        key = provider_key(settings)
        yield "" if key is None else key.get_secret_value()


def _find_url_secrets(url: str) -> Iterator[str]:
    """The password of a URL, and parameters whose names tell that they are secret."""
    with suppress(ValueError):  # not an address: the code that connects to it says so
        parts = urlsplit(url)
        pairs = (pair.partition("=") for pair in parts.query.split("&"))
        secrets = [value for name, _, value in pairs if SECRET_PARAMETER.search(name)]
        for secret in (parts.password or "", *secrets):
            yield from (secret, unquote(secret))


def _split_address(url: str) -> Iterator[str]:
    """A target's address after its scheme and host, and its parts: any may be a token, in apprise
    even in the host's place, unless that is the name or the number of a host. Its password may be
    shorter than a token.
    """
    yield from _find_url_secrets(url)
    rest = url.partition("://")[2]
    host, _, path = rest.partition("/")
    parts = [part for part in re.split(r"[/@?&=:]", rest) if len(part) >= LEAST_TOKEN]
    names = host.rpartition("@")[2].partition(":")[0]
    is_host = "." in names or names.startswith(("localhost", "["))
    for secret in (path, *(part for part in parts if not (is_host and part == names))):
        yield from (secret, unquote(secret))
