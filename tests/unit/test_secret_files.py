"""Where a provider's key comes from, and what is said where it cannot."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from rlhf_pipeline.config import Settings
from rlhf_pipeline.errors import ConfigurationError
from rlhf_pipeline.secret_files import provider_key

KEY = "sk-canary-5a10"


def settings(path: Path | None = None, **more: object) -> Settings:
    return Settings(api_key_file=path, **more)  # type: ignore[arg-type]


def reveal(key: SecretStr | None) -> str | None:
    return None if key is None else key.get_secret_value()


def test_a_key_is_read_from_the_settings_a_file_or_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f" {KEY}\n")
    assert reveal(provider_key(settings())) is None
    assert reveal(provider_key(settings(path))) == KEY
    assert reveal(provider_key(settings(path, api_key=SecretStr("other")))) == "other"


def test_a_key_that_cannot_be_had_names_cause_and_cure_and_nothing_of_it(tmp_path: Path) -> None:
    two, empty, odd = (tmp_path / name for name in ("two", "empty", "odd"))
    two.write_text(f"{KEY}\n{KEY}\n")
    empty.write_text("\n")
    odd.write_bytes(KEY.encode() + b"\xff")
    refused = {
        "cannot be read": settings(tmp_path / "missing"),
        "set RLHF_API_KEY": settings(tmp_path),
        "not hold one key": settings(two),
        "on one line": settings(empty),
        "the key alone": settings(odd),
    }
    for told, given in refused.items():
        with pytest.raises(ConfigurationError, match=told) as error:
            provider_key(given)
        assert KEY not in str(error.value)
        assert error.value.__cause__ is None
        assert error.value.__suppress_context__ or error.value.__context__ is None, (
            "a traceback would show what was read"
        )
