"""Lists every setting and loop parameter with its value, default, source and meaning."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, SecretStr

from rlhf_pipeline.core.config import Settings, SettingSource
from rlhf_pipeline.core.records import Record
from rlhf_pipeline.improve.loop_settings import PARTS, LoopSettings
from rlhf_pipeline.watch.telemetry.logs import SecretFilter

HIDDEN = "set, hidden"


class EffectiveSetting(Record):
    """A setting of the process that lists it."""

    name: str
    value: str
    default: str
    source: SettingSource
    meaning: str


class LoopParameter(Record):
    """A parameter of one part of the loop settings, as the next run uses it."""

    name: str
    value: str
    default: str
    is_set: bool  # in rlhf.yaml, or in the stored version
    meaning: str


def list_settings(settings: Settings) -> list[EffectiveSetting]:
    """All settings in the order of the documents. Of secrets only whether they are set. Raises
    ConfigurationError for a settings file that became unreadable.
    """
    hide, sources = SecretFilter(settings).hide, settings.find_sources()
    return [
        EffectiveSetting(
            name=name,
            value=hide(_show_setting(getattr(settings, name))),
            default=_show_setting(field.default),
            source=sources[name],
            meaning=field.description or "",
        )
        for name, field in Settings.model_fields.items()
    ]


def list_parameters(loop: LoopSettings, part: str) -> list[LoopParameter]:
    """The parameters of one part, those of its sections as `section.field`."""
    return list(_list(loop.params(part), PARTS[part](), loop.given.get(part, {})))


def _list(
    params: BaseModel, defaults: BaseModel, overrides: Mapping[str, Any], prefix: str = ""
) -> Iterator[LoopParameter]:
    for name, field in type(params).model_fields.items():
        value, default = getattr(params, name), getattr(defaults, name)
        if isinstance(value, BaseModel):
            yield from _list(value, default, overrides.get(name) or {}, f"{prefix}{name}.")
        else:
            yield LoopParameter(
                name=prefix + name,
                value=_show(value),
                default=_show(default),
                is_set=name in overrides,
                meaning=field.description or "",
            )


def _show_setting(value: Any) -> str:
    if isinstance(value, SecretStr):
        return HIDDEN if value.get_secret_value() else _show(None)
    if isinstance(value, tuple):  # targets, whose addresses are secrets
        return ", ".join(f"{target.name} ({target.channel})" for target in value) or _show(None)
    return _show(value)


def _show(value: Any) -> str:
    return "-" if value in (None, "") else str(value)
