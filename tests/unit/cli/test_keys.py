"""`rlhf keys`: a key that is sealed in a file and used from there."""

import stat
from pathlib import Path

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from rlhf_pipeline.core.errors import ConfigurationError
from tests.providers.stub_provider import StubProvider

KEY = "sk-canary-31f0"


def test_a_key_from_a_pipe_is_sealed_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rlhf = CliRunner()
    sealing_key = rlhf.invoke(app, ["keys", "new"], catch_exceptions=False).output.strip()
    environ = {
        "RLHF_HOME": str(tmp_path / "home"),
        "RLHF_SEALING_KEY": sealing_key,
        "RLHF_API_KEY": "",
    }
    sealing = rlhf.invoke(
        app, ["keys", "seal", "key.sealed"], input=KEY + "\n", env=environ, catch_exceptions=False
    )
    assert "RLHF_API_KEY_FILE" in sealing.output
    assert stat.S_IMODE((tmp_path / "key.sealed").stat().st_mode) == 0o600
    (tmp_path / "prompts.jsonl").write_text('{"text": "Name a river."}\n')
    with StubProvider(api_key=SecretStr(KEY)) as stub:
        arguments = [
            "generate",
            "--input",
            "prompts.jsonl",
            "--backend",
            "openai_compatible",
            "--base-url",
            stub.base_url,
            "--model",
            "stub-model",
        ]
        result = rlhf.invoke(
            app,
            arguments,
            env=environ | {"RLHF_API_KEY_FILE": "key.sealed"},
            catch_exceptions=False,
        )
    assert "1 of 1 completions" in result.output
    everything = (
        b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        + (sealing.output + result.output).encode()
    )
    assert KEY.encode() not in everything
    assert sealing_key.encode() not in everything
    with pytest.raises(ConfigurationError, match="rlhf keys new"):
        rlhf.invoke(
            app,
            ["keys", "seal", "other"],
            input=KEY,
            env=environ | {"RLHF_SEALING_KEY": ""},
            catch_exceptions=False,
        )
    assert not (tmp_path / "other").exists()
