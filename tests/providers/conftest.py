"""Fixtures of the tests that ask a stub provider over HTTP."""

from collections.abc import Callable

import pytest
from pydantic import SecretStr

from rlhf_pipeline.generate.completions import HostedBackend
from tests.providers.generation_runs import BACKENDS, KEY
from tests.unit.generate.completions.conftest import prompts, store  # noqa: F401 (fixtures)


@pytest.fixture(params=sorted(BACKENDS))
def make(request: pytest.FixtureRequest) -> Callable[..., HostedBackend]:
    """A backend of each kind for a STUB."""
    kind = BACKENDS[request.param]
    return lambda stub, **more: kind("stub-model", stub.base_url, SecretStr(KEY), **more)
