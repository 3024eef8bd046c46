"""What of a key and an address is taken out of what is said, and what is left: a message that says
nothing any more helps nobody.
"""

import html
import json
import traceback

import pytest

from rlhf_pipeline.completions import AnthropicBackend, OpenAICompatibleBackend
from rlhf_pipeline.completions.redaction import check_address, redact, secrets_of
from rlhf_pipeline.errors import ConfigurationError


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
def test_an_address_that_would_be_taken_apart_within_its_password_is_refused_without_a_word_of_it(
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
def test_any_other_address_is_taken_as_it_is(url: str) -> None:
    assert check_address(url) == url


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "https://host/v1?api-version=2024-02-01&key=canary-9",
            "API version 2024-02-01 is not supported: api-version=2024-02-01",
        ),
        ("https://host/v1?API_Version=2024-10-21-preview", "use 2024-10-21-preview"),
        ("https://host/v1?v=1", "see /docs?dev=10 and ?v=1"),
        ("https://host/v1?key=abc", "key=abc of abc"),
        ("https://host/v1?key=secret", "ask the secretary for monkey=secrets"),
        ("https://service:canary-9@host/v1", "microservices are down"),
    ],
)
def test_what_is_no_secret_or_only_looks_like_one_stays_in_a_message(url: str, said: str) -> None:
    assert redact(said, *secrets_of(url)) == said


@pytest.mark.parametrize("key", ["e", "x", "abc", " abc\n"])
def test_a_key_of_a_few_letters_spoils_no_message(key: str) -> None:
    assert redact("Service unavailable (abc, x)", key) == "Service unavailable (abc, x)"


@pytest.mark.parametrize(
    ("url", "said", "shown"),
    [
        (
            "https://host/v1?key=secret",
            "?key=secret, 'secret', key%3Dsecret&x, secret",
            "?***, '***', key%3D***&x, ***",
        ),
        ("https://host/v1?key=secret", repr("the\nsecret"), "'the\\n***'"),
        ("https://host/v1?key=a-key-of-many-letters", "xa-key-of-many-lettersx", "x***x"),
        ("https://me:pass-word@host/v1", "mypass-words", "my***s"),
    ],
)
def test_a_secret_is_found_wherever_it_stands_by_itself_and_a_long_one_or_a_password_anywhere(
    url: str, said: str, shown: str
) -> None:
    assert redact(said, *secrets_of(url)) == shown


SECRET = "pa&s<'s\"w\\d>"


@pytest.mark.parametrize(
    "said",
    [
        f"<p>{html.escape(SECRET)}</p>",
        f"<p>{html.escape(SECRET, quote=False)}</p>",
        f"<p>{html.escape(SECRET).replace('&#x27;', '&#39;')}</p>",
        {"message": f"got {SECRET}"},
        {"message": f"got {SECRET} for \"x\" and 'y'"},
        repr(SECRET),
        json.dumps({"message": SECRET}),
    ],
)
def test_a_secret_is_found_as_a_page_or_an_object_spells_it(said: object) -> None:
    shown = redact(said, SECRET)
    assert "***" in shown
    assert "pa&" not in shown
    assert "w\\" not in shown
