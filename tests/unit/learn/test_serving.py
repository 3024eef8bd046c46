"""A server of vLLM's protocol, as far as adapters go: it keeps what it is asked to load."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pydantic import SecretStr

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import BackendUnavailable, ServerUnreachable
from rlhf_pipeline.core.records import ModelVersion
from rlhf_pipeline.generate.completions.adapter_server import ADAPTER, BASE_HASH, load_adapter
from rlhf_pipeline.learn.champions.serving import serve

KEY = SecretStr("sk-adapters-0123456789")
LABEL = "demo.policy@2"


class AdapterServer(ThreadingHTTPServer):
    """`adapters` by name; `can_load` is VLLM_ALLOW_RUNTIME_LORA_UPDATING."""

    def __init__(self, can_load: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), AdapterRequest)
        self.can_load = can_load
        self.adapters: dict[str, str] = {}

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class AdapterRequest(BaseHTTPRequestHandler):
    server: AdapterServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name, adapters = body["lora_name"], self.server.adapters
        if self.path != "/v1/load_lora_adapter" or not self.server.can_load:
            self.reply(404, '{"detail":"Not Found"}')
        elif self.headers["Authorization"] != f"Bearer {KEY.get_secret_value()}":
            self.reply(401, f'{{"error":"no {self.headers["Authorization"]}"}}')
        elif name in adapters:
            self.reply(400, f"The lora adapter '{name}' has already been loaded. If you want …")
        else:
            adapters[name] = body["lora_path"]
            self.reply(200, f"Success: LoRA adapter '{name}' added successfully.")

    def reply(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[AdapterServer]:
    with AdapterServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def policy_version(number, content_hash):
    return ModelVersion(
        kind="policy",
        name="demo.policy",
        version=number,
        content_hash=content_hash,
        uri="u",
        created_at="2026-01-01T00:00:00Z",
    )


@pytest.fixture
def folder(tmp_path):
    """A candidate trained with adapters on the policy with content hash `base`."""
    (tmp_path / ADAPTER).mkdir()
    (tmp_path / ADAPTER / BASE_HASH).write_text("base")
    return tmp_path


def fault(server, folder, base="base", **options):
    settings = Settings(
        **{
            "completion_backend": "openai_compatible",
            "base_url": server.base_url,
            "api_key": KEY,
            "load_adapters": True,
            "api_model": "first",
        }
        | options
    )
    return serve(settings, policy_version(2, "h2"), folder, policy_version(1, base))


def test_a_promoted_adapter_is_loaded_once_under_its_label(server, folder):
    assert fault(server, folder) is None
    assert fault(server, folder) is None
    assert server.adapters == {LABEL: str(folder / ADAPTER)}


def test_unservable_policy_is_named(server, folder, tmp_path_factory):
    assert "completions come from first" in str(fault(server, folder, load_adapters=False))
    assert "come from backend template" in str(fault(server, folder, completion_backend="template"))
    empty = tmp_path_factory.mktemp("whole")
    assert "no LoRA adapter" in str(fault(server, empty))
    assert "not trained on the first policy" in str(fault(server, folder, base="another"))
    assert not server.adapters


def test_refusing_server_is_named_without_the_key(server, folder):
    server.can_load = False
    with pytest.raises(BackendUnavailable, match=r"404.*VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"):
        load_adapter(server.base_url, KEY, name=LABEL, folder=folder)
    server.can_load = True
    wrong = SecretStr("sk-wrong-0123456789")
    with pytest.raises(BackendUnavailable, match="401") as caught:
        load_adapter(server.base_url, wrong, name=LABEL, folder=folder)
    assert "sk-wrong" not in str(caught.value)


def test_unreachable_server_is_no_reason_to_serve_the_base(folder):
    with AdapterServer() as closed:
        pass
    with pytest.raises(ServerUnreachable, match=r"cannot be reached \(ConnectError\)"):
        fault(closed, folder)
