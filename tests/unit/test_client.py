"""The client without a server: what its import loads, and what its methods look like."""

import subprocess
import sys

import httpx

from rlhf_pipeline.client import Client
from rlhf_pipeline.core.api_types.project import Me

OURS = {
    "rlhf_pipeline",
    "rlhf_pipeline.core.api_types",
    "rlhf_pipeline.client",
    "rlhf_pipeline.core.conversations",
    "rlhf_pipeline.core.curation",
    "rlhf_pipeline.core.documents",
    "rlhf_pipeline.core.errors",
    "rlhf_pipeline.core.experiments",
    "rlhf_pipeline.core",
    "rlhf_pipeline.core.monitoring",
    "rlhf_pipeline.core.records",
    "rlhf_pipeline.core.releases",
}
# beside the standard library and what these need themselves
LIBRARIES = {"httpx", "pydantic"}
HEAVY = {
    "dagster",
    "fastapi",
    "numpy",
    "pandas",
    "pyarrow",
    "sklearn",
    "sqlalchemy",
    "torch",
    "transformers",
}


def test_importing_the_client_loads_no_heavy_module() -> None:
    script = "import sys, rlhf_pipeline.client; print(*sorted(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    ours = {name for name in loaded if name.split(".")[0] == "rlhf_pipeline"}
    assert {".".join(name.split(".")[:3]) for name in ours} == OURS
    top_level = {name.split(".")[0] for name in loaded}
    assert top_level >= LIBRARIES
    assert not top_level & HEAVY


def test_permission_of_a_newer_server_is_read() -> None:
    me = Me.model_validate(
        {
            "user_id": "u",
            "name": "Ann",
            "email": "ann@example.org",
            "roles": [],
            "permissions": ["votes.cast", "votes.predict"],
            "project": "demo",
            "added_later": 1,
        }
    )
    assert me.permissions == ("votes.cast", "votes.predict")


def test_fields_of_a_newer_server_are_ignored() -> None:
    user = {"user_id": "u1", "email": "a@example.org", "name": "Ann", "kind": "person"}
    user |= {"created_at": "2026-01-01T00:00:00Z", "roles": [], "has_password": True}
    page = {"items": [user | {"added_later": 1}], "next": None}
    answer = httpx.MockTransport(lambda _: httpx.Response(200, json=page))
    (answered,) = Client("http://127.0.0.1", transport=answer).users()
    assert answered.name == "Ann"
