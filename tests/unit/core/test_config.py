import os
import subprocess
import sys
import traceback
from datetime import date

import pytest

from rlhf_pipeline.core.config import TELEMETRY_OFF, HomeFacts, Settings, silence_telemetry
from rlhf_pipeline.core.errors import ConfigurationError


def test_by_default_all_state_is_below_var(tmp_path):
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


def test_an_unknown_setting_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ConfigurationError, match=r"policies.*Known: .*policy"):
        Settings.read({"RLHF_POLICIES": "mine"}, tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("START_DAY", "soon"),
        ("SENSORS_RUNNING", "perhaps"),
        ("QUIET_MINUTES", "-1"),
        ("PROJECT", "My Project"),
        ("ANNOTATORS", "cats"),
        ("MAX_CONCURRENT_RUNS", "0"),
        ("MLFLOW_URL", "foo"),
        ("RETENTION__RUN_DAYS", "0"),
        ("FRAMES_URL", "foo://x"),
        ("WEB_URL", "foo"),
    ],
)
def test_invalid_value_names_its_setting(tmp_path, name, value):
    with pytest.raises(
        ConfigurationError,
        match=rf"{name.lower().replace('__', '.')}: [^^]*; correct RLHF_{name[:9]}",
    ):
        Settings.read({f"RLHF_{name}": value}, tmp_path)


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ('api_key: "sk-canary', r"line 3, column 1"),
        ("api_key: *canary", "line 2, column 10"),
        ("api_key: !canary x", "line 2, column 10"),
        ("api_key: @canary", "line 2, column 10"),
        ("api_key: x: canary", "line 2, column 11"),
        ("api_key: !canary!x y", "line 2, column 10"),
    ],
)
def test_invalid_yaml_is_reported_by_position_without_its_content(tmp_path, line, place):
    (tmp_path / "rlhf.yaml").write_text(f"server_url: postgresql://ann:canary@db\n{line}\n")
    with pytest.raises(
        ConfigurationError, match=rf"rlhf\.yaml is not valid YAML: .*{place}"
    ) as refused:
        Settings.read({}, tmp_path)
    assert "canary" not in "".join(traceback.format_exception(refused.value))


def test_a_key_is_never_shown(tmp_path):
    settings = Settings.read({"RLHF_API_KEY": "sk-canary-77"}, tmp_path)
    assert settings.api_key is not None
    assert settings.api_key.get_secret_value() == "sk-canary-77"
    assert "canary" not in repr(settings) + str(settings) + settings.model_dump_json()


URLS = ("server_url", "database_url", "mlflow_url")


def test_addresses_are_shown_without_passwords(tmp_path):
    settings = Settings.read(
        {f"RLHF_{name.upper()}": f"postgresql://ann:canary@h/{name}" for name in URLS}, tmp_path
    )
    assert "canary" not in repr(settings) + str(settings) + settings.model_dump_json()
    assert settings.store_url == "postgresql+psycopg2://ann:canary@h/database_url"
    assert settings.tracking_uri == "postgresql+psycopg2://ann:canary@h/mlflow_url"
    with pytest.raises(ValueError, match="quiet_minutes") as refused:
        Settings(
            database_url="postgresql://ann:canary@h",
            quiet_minutes="canary",
            server_url="postgresql://canary:canary",
        )
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize("name", URLS)
@pytest.mark.parametrize(
    "password",
    [
        "left/right",
        "left#right",
        "left?right",
        "left@right",
        "left@le/ft",
        "le/ft@right",
        "[left",
        "left right",
        "left\tright",
        "left\u2100right",
    ],
)
def test_truncated_password_is_refused_without_showing_it(tmp_path, name, password):
    with pytest.raises(ConfigurationError, match=rf"{name}: .*percent-encode") as refused:
        Settings.read(
            {f"RLHF_{name.upper()}": f"postgresql://zoe:{password}@db:5433/x?sslmode=require"},
            tmp_path,
        )
    message = str(refused.value) + str(refused.value.__cause__)
    assert not any(part in message for part in ("left", "right", "zoe", "db:"))


@pytest.mark.parametrize("name", URLS)
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:canary",
        "postgresql://h?user=ann&password=canary",
        "postgresql://canary@h:canary/x",
        "postgresql://ann@h?sslmode=require&sslpassword=canary",
        "postgresql://ann@h?SSLPassword=canary",
        "postgresql://ann@h?%73slpassword=canary",
    ],
)
def test_misplaced_password_is_refused_without_showing_it(tmp_path, name, url):
    with pytest.raises(
        ConfigurationError, match=rf"{name}: .*(percent-encode|Write user:password@)"
    ) as refused:
        Settings.read({f"RLHF_{name.upper()}": url}, tmp_path)
    assert "canary" not in str(refused.value) + str(refused.value.__cause__)


def test_one_server_url_gives_three_databases_with_their_driver(tmp_path):
    settings = Settings.read(
        {
            "RLHF_SERVER_URL": "postgresql://ann:p%40s@db:5433?sslmode=require&connect_timeout=9",
            "RLHF_DATABASE_PREFIX": "team",
        },
        tmp_path,
    )
    server = "postgresql+psycopg2://ann:p%40s@db:5433"
    options = "?sslmode=require&connect_timeout=9"
    assert settings.store_url == f"{server}/team_store{options}"
    # MLflow and Dagster set none
    limits = "&keepalives_idle=5&keepalives_interval=2&keepalives_count=3&tcp_user_timeout=10000"
    assert settings.tracking_uri == f"{server}/team_mlflow{options}{limits}"
    assert settings.dagster_environ == {
        "DAGSTER_HOME": f"{tmp_path}/var/dagster",
        "RLHF_DAGSTER_URL": f"{server}/team_dagster{options}{limits}",
    }
    assert "p%40s" not in repr(settings) + settings.model_dump_json()


@pytest.mark.parametrize(
    "url", ["mysql://hush@h", "postgresql+asyncpg://hush@h", "postgresql:", "hush", "postgresql://"]
)
def test_unsupported_server_url_is_refused_without_showing_it(tmp_path, url):
    with pytest.raises(ConfigurationError, match=r"server_url: .*write postgresql://") as refusal:
        Settings.read({"RLHF_SERVER_URL": url}, tmp_path)
    assert "hush" not in str(refusal.value)


def test_a_home_on_a_server_remembers_it_for_later_commands(tmp_path):
    HomeFacts(
        project="demo",
        server_url="postgresql://ann:hush@db",
        database_prefix="team",
    ).write(tmp_path / "var")
    assert Settings.read({}, tmp_path).store_url == "postgresql+psycopg2://ann:hush@db/team_store"
    assert (
        Settings.read({"RLHF_SERVER_URL": "postgresql://bob@db"}, tmp_path).store_url
        == "postgresql+psycopg2://bob@db/team_store"
    )
    assert (tmp_path / "var" / "project.json").stat().st_mode & 0o077 == 0


def test_telemetry_is_off_by_default(monkeypatch):
    for key in TELEMETRY_OFF:
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("DO_NOT_TRACK", "chosen")
    silence_telemetry()
    assert {key: os.environ[key] for key in TELEMETRY_OFF} == TELEMETRY_OFF | {
        "DO_NOT_TRACK": "chosen"
    }


def test_settings_cost_no_heavy_import():
    script = (
        "import sys, rlhf_pipeline.core.config; print(sorted({'torch', 'pandas', 'dagster', "
        "'mlflow'} & set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_home_records_project_and_first_day(tmp_path):
    HomeFacts(project="real", start_day=date(2016, 1, 31)).write(tmp_path / "var")
    settings = Settings.read({}, tmp_path)
    assert (settings.project, settings.start_day) == ("real", date(2016, 1, 31))
    assert Settings.read({"RLHF_START_DAY": "2016-02-01"}, tmp_path).start_day == date(2016, 2, 1)


def test_what_is_no_home_yet_names_the_command_that_makes_one(tmp_path):
    with pytest.raises(ConfigurationError, match=r"no home yet\. Make it with `rlhf init`"):
        HomeFacts.change(tmp_path, has_models=True)


def test_home_of_another_project_is_refused(tmp_path):
    HomeFacts(project="real").write(tmp_path / "var")
    with pytest.raises(ConfigurationError, match=r"holds project 'real', not 'demo'.*RLHF_HOME"):
        Settings.read({"RLHF_PROJECT": "demo"}, tmp_path)


def test_facts_of_a_home_are_readable_by_its_owner_only(tmp_path):
    HomeFacts(project="demo", server_url="postgresql://me:secret@host").write(tmp_path / "var")
    assert (tmp_path / "var" / "project.json").stat().st_mode & 0o077 == 0
    settings = Settings.read({}, tmp_path)
    assert settings.server_url.get_secret_value() == "postgresql://me:secret@host"
    assert "secret" not in repr(settings)


def test_a_setting_given_twice_is_named_with_its_line(tmp_path):
    (tmp_path / "rlhf.yaml").write_text("project: one\nquiet_minutes: 5\nproject: two\n")
    with pytest.raises(ConfigurationError, match=r"rlhf\.yaml .*duplicate key 'project', line 3"):
        Settings.read({}, tmp_path)
