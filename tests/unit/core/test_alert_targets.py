"""Targets of alerts in the settings: how they are read, what is refused, and that secrets stay."""

import json
from pathlib import Path

import pytest

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ConfigurationError

SECRET = "whsec_dG9wLXNlY3JldC1vZi10aGUtdGVhbS0xMjM0NTY3OA=="
WEBHOOK = {"channel": "webhook", "url": "https://hooks.example.org/T0KEN", "secret": SECRET}
MAIL = {"channel": "apprise", "url": "mailtos://ann:pw12345@mail.example.org"}


def read(targets: object, folder: Path) -> Settings:
    return Settings.read({"RLHF_ALERT_TARGETS": json.dumps(targets)}, folder)


def test_targets_keep_their_order_and_their_secrets(tmp_path: Path) -> None:
    settings = read({"team": WEBHOOK, "boss": MAIL}, tmp_path)
    assert [target.name for target in settings.alert_targets] == ["team", "boss"]
    assert hash(settings)
    dump = repr(settings) + str(settings.model_dump())
    assert not [part for part in (SECRET, "T0KEN", "pw12345") if part in dump]


def test_paths_in_rlhf_yaml_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "rlhf.yaml").write_text(
        "alert_targets:\n  team: {channel: webhook, url: 'https://a.org', secret_file: hook.key}\n"
    )
    (target,) = Settings.read({"RLHF_HOME": str(tmp_path / "home")}, tmp_path).alert_targets
    assert target.secret_file == tmp_path / "hook.key"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"channel": "pigeon"}, "team channel: Input should be 'log', 'webhook' or 'apprise'"),
        (WEBHOOK | {"url": "T0KEN"}, "team: url is not an address"),
        (WEBHOOK | {"url": "https://u:T0KEN@a.org/"}, "without user:@"),
        (WEBHOOK | {"secret": None}, "team: set secret or secret_file, one of them"),
        (WEBHOOK | {"secret_file": "/run/key"}, "team: set secret or secret_file, one of them"),
        (WEBHOOK | {"secret": None, "secret_file": "key"}, "must be a full path"),
        (WEBHOOK | {"colour": "T0KEN"}, "team colour: Extra inputs"),
        (MAIL | {"secret": "T0KEN"}, "team: the channel apprise has no secret; remove it"),
        ({"channel": "apprise"}, "team: set url or url_file, one of them"),
        ("T0KEN", "team: Input should be"),
    ],
)
def test_refusals_name_the_target_but_no_secret(
    settings: object, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        read({"team": settings}, tmp_path)
    assert problem in str(refusal.value)
    assert "T0KEN" not in str(refusal.value)
