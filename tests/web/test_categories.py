"""Comparisons of one category: by the API, the client and the page, to readers who may know it."""

import pytest

from tests.web.conftest import Web


@pytest.mark.parametrize("word", ["a\x00b", "x" * 201])
def test_invalid_category_is_refused(paged: Web, word: str):
    assert paged.client("auditor").get("/comparisons", params={"category": word}).status_code == 422
    page = paged.browser(paged.add("auditor")).get(
        f"{paged.url}/comparisons", params={"category": word}
    )
    assert page.status_code == 422
