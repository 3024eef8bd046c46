"""Writes log lines as text or as JSON, as the settings say, without the secrets of these."""

import json
import logging
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, SecretStr

from rlhf_pipeline.alert_targets import AlertTarget
from rlhf_pipeline.config import Settings, keep_mlflow_from_logging
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.secret_files import provider_key, read_secret
from rlhf_pipeline.telemetry.current_step import current_step
from rlhf_pipeline.terminal import escape_controls

# the library and the application; other libraries write warnings and errors only
OURS = ("rlhf_pipeline", "assets", "resources", "jobs", "sensors", "driver")
# Dagster's processes have their own handlers for these, in the format that `rlhf dev` asks for.
OF_DAGSTER = ("dagster", "dagster-webserver")
LEAST_TOKEN = 6  # of a URL of apprise, whose shorter parts may be ordinary words
LEAST_SECRET = 4  # characters; replacing shorter ones would hide half of every line
SECRET_PARAMETER = re.compile("pass|key|token|secret", re.IGNORECASE)
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class SecretFilter:
    """Replaces the secrets of the settings, and of the files that they name, in lines of any
    logger, and in alerts. A file that has changed is read again; its earlier secret stays hidden.
    """

    def __init__(self, settings: BaseModel):
        self._settings = settings
        self._files = tuple(_find_files(settings))
        self._secrets: list[str] = []
        # of the files as they were read; None: never
        self._states: list[tuple[int, int] | None] | None = None

    def hide(self, text: str) -> str:
        self._refresh()
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return text

    def _refresh(self) -> None:
        states = [_find_state(file) for file in self._files]
        if states == self._states:
            return
        found = {*self._secrets, *_find_secrets(self._settings)}
        self._secrets = sorted((s for s in found if len(s) >= LEAST_SECRET), key=len, reverse=True)
        self._states = states

    def hide_in(self, value: Any) -> Any:
        """The value with its texts hidden, those of nested mappings and lists too."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {key: self.hide_in(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide_in(item) for item in value]
        return value


class TextFormatter(logging.Formatter):
    """Time, level, logger and message; a traceback follows on lines of its own."""

    def __init__(self, secrets: SecretFilter):
        super().__init__(TEXT)
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        return self._secrets.hide(escape_controls(super().format(record)))


class JsonFormatter(logging.Formatter):
    """One JSON object on one line, with the run and the step where there is one."""

    def __init__(self, secrets: SecretFilter):
        super().__init__()
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        of_dagster: dict[str, Any] = getattr(record, "dagster_meta", None) or {}
        step = current_step()
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": of_dagster.get("orig_message") or record.getMessage(),
            "run_id": of_dagster.get("run_id") or (step.run_id if step else None),
            "job": of_dagster.get("job_name"),
            "step": of_dagster.get("step_key") or (step.key if step else None),
            "error": self.formatException(record.exc_info) if record.exc_info else None,
        }
        line = {name: self._secrets.hide(text) for name, text in fields.items() if text}
        return json.dumps(line, ensure_ascii=False)


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what stderr is at the moment."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def configure_logs(settings: Settings) -> None:
    """Write this process's log lines as the settings say. Safe to repeat; the last settings count.

    As JSON, uncaught errors are records too.
    """
    root = logging.getLogger()
    for previous in [h for h in root.handlers if isinstance(h, StderrHandler)]:
        root.removeHandler(previous)
    handler = build_handler(settings)
    handler.addFilter(lambda record: record.name.partition(".")[0] not in OF_DAGSTER)
    # some libraries, Great Expectations among them, set the level of their loggers themselves
    handler.addFilter(
        lambda record: record.levelno >= logging.WARNING or record.name.partition(".")[0] in OURS
    )
    root.addHandler(handler)
    level = (settings.log_level or "warning").upper()
    root.setLevel("ERROR" if level == "ERROR" else "WARNING")
    for name in OURS:
        logging.getLogger(name).setLevel(level)
    if settings.log_format == "json":
        keep_mlflow_from_logging()
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
        threading.excepthook = lambda args: _log_uncaught(
            args.exc_type, args.exc_value, args.exc_traceback
        )


def log_as_json(error: str) -> bool:
    """Log the error that ends a command, if this process writes JSON; otherwise do nothing."""
    handlers = logging.getLogger().handlers
    is_json = any(isinstance(handler.formatter, JsonFormatter) for handler in handlers)
    if is_json:
        logging.getLogger("rlhf_pipeline").error("%s", error)
    return is_json


def build_handler(settings: Settings) -> StderrHandler:
    """A handler that writes to stderr in the format of the settings."""
    secrets = SecretFilter(settings)
    handler = StderrHandler()
    handler.setFormatter(
        JsonFormatter(secrets) if settings.log_format == "json" else TextFormatter(secrets)
    )
    return handler


def _log_uncaught(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    if error is not None and not issubclass(kind, KeyboardInterrupt | SystemExit):
        logging.getLogger("rlhf_pipeline").critical(
            "%s: %s", kind.__name__, error, exc_info=(kind, error, trace)
        )


def _find_secrets(value: object) -> Iterator[str]:
    """Values of secret fields and each word of them, also in nested records; of a URL its password
    and its path, which is the secret of a webhook; of headers each value.
    """
    if isinstance(value, SecretStr):
        plain = value.get_secret_value()
        if "://" in plain:
            try:
                yield from _find_url_secrets(plain)
                parts = urlsplit(plain)
                if parts.scheme in ("http", "https"):
                    yield plain.partition(parts.netloc)[2]
            except ValueError:  # not an address: the code that connects to it says so
                yield plain
            return
        yield from (plain, *plain.split())  # several secrets while they are rotated
        for pair in plain.split(",") if "=" in plain else ():
            header = unquote(pair.partition("=")[2])
            yield from (header, header.rpartition(" ")[2])
    elif isinstance(value, str) and "://" in value:  # base_url, which is no secret as a whole
        with suppress(ValueError):  # not an address: the code that connects to it says so
            yield from _find_url_secrets(value)
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            item = getattr(value, name)
            item = _read_secret_file(value, name, item) if isinstance(item, Path) else item
            is_apprise = isinstance(value, AlertTarget) and value.channel == "apprise"
            if is_apprise and isinstance(item, SecretStr):
                yield from _find_tokens(item.get_secret_value())
            yield from _find_secrets(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _find_secrets(item)


def _find_url_secrets(url: str) -> Iterator[str]:
    """The password of a URL, and parameters whose names tell that they are secret."""
    parts = urlsplit(url)
    pairs = (pair.partition("=") for pair in parts.query.split("&"))
    secrets = [value for name, _, value in pairs if SECRET_PARAMETER.search(name)]
    for secret in (parts.password or "", *secrets):
        yield from (secret, unquote(secret))


def _read_secret_file(owner: BaseModel, name: str, file: Path) -> SecretStr | None:
    """The secret in a file that takes the place of a secret field; None of other files, and of one
    that holds no secret.
    """
    try:
        if isinstance(owner, Settings):
            return provider_key(owner) if name == "api_key_file" else None
        return SecretStr(read_secret(None, file))
    except ConfigurationError:  # the code that uses the secret says so
        return None


def _find_files(value: object) -> Iterator[Path]:
    """The files that settings name, also in nested records."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            item = getattr(value, name)
            if isinstance(item, Path) and name.endswith("_file"):
                yield item
            yield from _find_files(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _find_files(item)


def _find_state(file: Path) -> tuple[int, int] | None:
    """Changes with the content of a file; None if there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _find_tokens(url: str) -> Iterator[str]:
    """A URL of apprise after its scheme, and its parts: any may be a token, even in the host's
    place, unless that is the name or the number of a host.
    """
    rest = url.partition("://")[2]
    host = rest.partition("/")[0].rpartition("@")[2]
    parts = (part for part in re.split(r"[/@?&=]", rest) if len(part) >= LEAST_TOKEN)
    is_host = "." in host or host.startswith(("localhost", "["))
    for secret in (rest, *(part for part in parts if not (is_host and part == host))):
        yield from (secret, unquote(secret))
