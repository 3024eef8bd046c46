"""Lists of people and of tokens go on over their pages, as every list does."""

import base64

import httpx

from rlhf_pipeline.core.records import User
from rlhf_pipeline.web.lists import make_cursor
from tests.web.conftest import Web


def test_users_and_tokens_are_listed_page_by_page(web: Web):
    browser = web.browser(web.add("admin"))
    for i in range(7):
        web.add("annotator", email=f"ann{i}@example.org")
        web.client(user=browser_user(web, browser)).close()
    for path, key in (("/users", "email"), ("/me/tokens", "token_id")):
        whole = browser.get(path).json()
        assert whole["next"] is None
        items = []
        cursor = None
        n_pages = 0
        while True:
            page = browser.get(
                path, params={"limit": 3} | ({"cursor": cursor} if cursor else {})
            ).json()
            items += page["items"]
            cursor, n_pages = page["next"], n_pages + 1
            # addresses of requests are logged, of people not
            assert "@" not in base64.urlsafe_b64decode((cursor or "") + "==").decode()
            if cursor is None:
                break
        assert (items, n_pages) == (whole["items"], 3)
        assert len({item[key] for item in items}) == len(items) >= 7
        for wrong in ("nonsense", make_cursor("nobody"), make_cursor(7)):
            answer = browser.get(path, params={"cursor": wrong})
            assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "query.cursor")
        assert browser.get(path, params={"limit": 0}).status_code == 422


def browser_user(web: Web, browser: httpx.Client) -> User:
    return web.store.users.get(browser.get("/me").json()["user_id"])
