import os
import subprocess
import sys

import pytest

from rlhf_pipeline.config import TELEMETRY_OFF, Settings, silence_telemetry
from rlhf_pipeline.errors import ConfigurationError


def test_without_anything_all_state_lies_in_var_beside_the_caller(tmp_path):
    settings = Settings.read({}, tmp_path)
    assert settings.home == tmp_path / "var"
    assert settings.store_url == f"sqlite:///{tmp_path}/var/store.db"
    assert settings.tracking_uri == f"sqlite:///{tmp_path}/var/mlflow/mlflow.db"
    for place in (settings.frames, settings.models, settings.cache, settings.exports):
        assert str(place).startswith(f"{tmp_path}/var/")


def test_the_environment_overrides_the_file(tmp_path):
    (tmp_path / "rlhf.yaml").write_text("project: from_file\nvotes_per_request: 7\nhome: state\n")
    settings = Settings.read({"RLHF_PROJECT": "from_environment"}, tmp_path)
    assert (settings.project, settings.votes_per_request) == ("from_environment", 7)
    assert settings.home == tmp_path / "state"


def test_an_absolute_home_stays_where_it_is(tmp_path):
    assert Settings.read({"RLHF_HOME": "/srv/rlhf"}, tmp_path).home.as_posix() == "/srv/rlhf"


def test_empty_and_foreign_variables_are_no_settings(tmp_path):
    assert Settings.read({"RLHF_POLICY": "", "HOME": "/root", "XRLHF_POLICY": "x"}, tmp_path) == Settings.read({}, tmp_path)


def test_an_unknown_setting_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ConfigurationError, match=r"policies.*Known: .*policy"):
        Settings.read({"RLHF_POLICIES": "mine"}, tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("START_DAY", "soon"), ("SENSORS_RUNNING", "perhaps"), ("KEEP_DAYS", "0"), ("PROJECT", "My Project"), ("ANNOTATORS", "cats")],
)
def test_a_value_that_cannot_be_used_names_its_setting(tmp_path, name, value):
    with pytest.raises(ConfigurationError, match=f"{name.lower()}: "):
        Settings.read({f"RLHF_{name}": value}, tmp_path)


@pytest.mark.parametrize("content", [b"project: [", b"- just\n- a list\n", b"project: \xff\xfe"])
def test_a_file_that_is_no_mapping_is_named(tmp_path, content):
    (tmp_path / "rlhf.yaml").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"rlhf\.yaml"):
        Settings.read({}, tmp_path)


def test_an_empty_file_changes_nothing(tmp_path):
    (tmp_path / "rlhf.yaml").write_text("# nothing yet\n")
    assert Settings.read({}, tmp_path) == Settings.read({}, tmp_path / "elsewhere").model_copy(update={"home": tmp_path / "var"})


def test_a_key_is_never_shown(tmp_path):
    settings = Settings.read({"RLHF_API_KEY": "sk-canary-77"}, tmp_path)
    assert settings.api_key is not None
    assert settings.api_key.get_secret_value() == "sk-canary-77"
    assert "canary" not in repr(settings) + str(settings) + settings.model_dump_json()


def test_settings_are_frozen_and_hashable(tmp_path):
    settings = Settings.read({}, tmp_path)
    assert hash(settings) == hash(Settings.read({}, tmp_path))
    with pytest.raises(ValueError, match="frozen"):
        settings.project = "other"


def test_own_addresses_win_over_the_home(tmp_path):
    urls = {"RLHF_DATABASE_URL": "postgresql+psycopg2://h/store", "RLHF_MLFLOW_URL": "http://m", "RLHF_FRAMES_URL": "s3://b/f"}
    settings = Settings.read(urls, tmp_path)
    assert (settings.store_url, settings.tracking_uri, settings.frames) == tuple(urls.values())


def test_telemetry_is_off_unless_somebody_chose_otherwise(monkeypatch):
    for key in TELEMETRY_OFF:
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("DO_NOT_TRACK", "chosen")
    silence_telemetry()
    assert {key: os.environ[key] for key in TELEMETRY_OFF} == TELEMETRY_OFF | {"DO_NOT_TRACK": "chosen"}


def test_settings_cost_no_heavy_import():
    script = "import sys, rlhf_pipeline.config; print(sorted({'torch', 'pandas', 'dagster', 'mlflow'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip() == "[]"
