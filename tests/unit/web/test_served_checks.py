"""The web app's check of what serves, when it cannot be made."""

import logging
import threading

import pytest

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import ModelNotFound
from rlhf_pipeline.generate.completions import LocalBackend
from rlhf_pipeline.web.chat.checks import ServedChecks


class Unreadable:
    """Champions whose files are gone when the check gets to them."""

    def __init__(self):
        self.is_asked, self.may_fail = threading.Event(), threading.Event()

    def policy(self):
        self.is_asked.set()
        self.may_fail.wait(120)
        raise ModelNotFound("gone")


@pytest.mark.parametrize("is_closed", [False, True])
def test_failed_check_is_logged_unless_the_server_ends(tmp_path, caplog, is_closed):
    champions = Unreadable()
    checks = ServedChecks(Settings(home=tmp_path), champions)
    with caplog.at_level(logging.WARNING):
        checks.consider(LocalBackend("policy", "demo.policy@1"))
        assert champions.is_asked.wait(120)
        if is_closed:
            checks.close()
        champions.may_fail.set()
        checks._worker.shutdown()
    assert len(caplog.records) == (not is_closed)
