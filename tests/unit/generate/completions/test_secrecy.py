"""What of a key and an address is taken out of what is said, and what is left: a message that says
nothing any more helps nobody.
"""

import html
import json
import traceback
from urllib.parse import quote

import pytest

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.generate.completions import AnthropicBackend, OpenAICompatibleBackend
from rlhf_pipeline.generate.completions.redaction import check_address, redact, secrets_of


@pytest.mark.parametrize(
    "url",
    [
        "https://me:canary/ss@host/v1",
        "https://me:canary#ss@host/v1",
        "https://me:canary?ss@host/v1",
        "https://me:12/canary@host/v1",
        "https://canary/x:y@host/v1",
        "https://me:p@canary/ss@host/v1",
        "https://me:canary[@host/v1",
    ],
)
@pytest.mark.parametrize("kind", [OpenAICompatibleBackend, AnthropicBackend])
def test_ambiguous_url_password_is_refused_without_showing_it(
    kind: type[OpenAICompatibleBackend] | type[AnthropicBackend], url: str
) -> None:
    with pytest.raises(ConfigurationError, match=r"base_url .*[Pp]ercent-encode") as refused:
        kind("m", url)
    assert "canary" not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    "url",
    [
        "https://me:can%2Fary%40@host/v1",
        "http://[::1]:8000/v1",
        "http://127.0.0.1:8000/v1?api-version=1",
        "https://a:p@ss@host/v1",
    ],
)
def test_other_urls_are_accepted_unchanged(url: str) -> None:
    assert check_address(url) == url


@pytest.mark.parametrize(
    ("url", "text", "redacted"),
    [
        (
            "https://host/v1?api-version=2024-02-01&key=canary-9",
            "API version 2024-02-01 is not supported: key=canary-9",
            "API version 2024-02-01 is not supported: key=***",
        ),
        ("https://host/v1?v=1&key=abc", "?v=1 and key=abc of abc", "?v=1 and key=abc of abc"),
        ("https://host/v1?key=a+canary%20b", "a canary b, a%20canary%20b", "***, ***"),
        ("https://token-7@host/v1", "//token-7@host, token-7", "//***@host, ***"),
        ("https://me:pass-word@host/v1", "me:pass-word@, pass-word", "***@, ***"),
        ("https://me:can-ary@host/v1", "Basic bWU6Y2FuLWFyeQ==", "Basic ***"),
        ("https://can-ary:@host/v1", "can-ary, Basic Y2FuLWFyeTo=", "***, Basic ***"),
        ("https://can-ary@host/v1", "can-ary, Basic Y2FuLWFyeTo=", "***, Basic ***"),
        ("https://host/v1?can-ary", "/v1?can-ary=, can-ary", "/v1?***=, ***"),
    ],
)
def test_url_secrets_are_redacted_but_not_short_words(url: str, text: str, redacted: str) -> None:
    assert redact(text, *secrets_of(url)) == redacted


SECRET = "pa&s<'s\"w\\d>"


@pytest.mark.parametrize(
    "text", [html.escape(SECRET), repr(SECRET), json.dumps({"message": SECRET}), quote(SECRET)]
)
def test_escaped_secrets_are_redacted(text: str) -> None:
    redacted = redact(text, SECRET)
    assert "***" in redacted
    assert "w\\" not in redacted
