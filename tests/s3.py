"""A real S3 server on loopback for tests, ended with them. Knows buckets and credentials; knows no
frames.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

BUCKET = "loop"
# Nobody's own configuration reaches the tests, and theirs no other server.
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "never-to-be-shown",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
    "NO_PROXY": "127.0.0.1",
    "no_proxy": "127.0.0.1",
}


@dataclass(frozen=True)
class S3:
    """A running server with one bucket; the environment points at it."""

    endpoint: str

    def url(self, folder: str) -> str:
        return f"s3://{BUCKET}/{folder}"


@contextmanager
def local_s3() -> Iterator[S3]:
    """Starts a server and points the environment of this process, and of those it starts, at it."""
    pytest.importorskip("s3fs", reason="needs the extra `s3`: pip install 'rlhf-pipeline[s3]'")
    server = pytest.importorskip(
        "moto.server", reason="needs the extra `dev`: pip install 'rlhf-pipeline[dev]'"
    )
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    store = S3(f"http://{host}:{port}")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3"):
            patch.delenv(name, raising=False)
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        point_at(store.endpoint, patch)
        try:
            _make_bucket()
            yield store
        finally:
            running.stop()
    forget_connections()


def point_at(endpoint: str, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("AWS_ENDPOINT_URL", endpoint)
    forget_connections()


def forget_connections() -> None:
    """The driver keeps one connection for each set of options, whatever the environment has become
    since.
    """
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()


def _make_bucket() -> None:
    from s3fs import S3FileSystem

    S3FileSystem(skip_instance_cache=True).call_s3("create_bucket", Bucket=BUCKET)
