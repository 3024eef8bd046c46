"""Loads a policy's LoRA adapter into a running vLLM server, under the name of its version."""

from collections.abc import Collection
from pathlib import Path

from pydantic import SecretStr

from rlhf_pipeline.core.errors import BackendUnavailable, ServerUnreachable
from rlhf_pipeline.generate.completions.server_calls import ServerCalls

ADAPTER = "adapter"  # folder in a candidate trained with LoRA: what a server loads onto the parent
BASE_HASH = "base.sha256"  # file in it
ALREADY_LOADED = "already been loaded"  # vLLM answers 400 to the second request for one name


def read_base_hash(adapter: Path) -> str:
    """Content hash of the policy whose weights the adapter in that folder changes."""
    return (adapter / BASE_HASH).read_text(encoding="utf-8")


def load_adapter(
    base_url: str,
    api_key: SecretStr | None,
    *,
    name: str,
    folder: Path,
    timeout_s: float = 60.0,
) -> None:
    """Ask the server at `base_url` to serve the adapter in `folder` as model `name`; repeating it
    changes nothing.

    Raises, without the key, BackendUnavailable if the server refuses, ServerUnreachable if it
    cannot be reached.
    """
    calls = ServerCalls(base_url, api_key, timeout_s)
    try:
        answer = calls.post(
            "/load_lora_adapter", {"lora_name": name, "lora_path": str(folder.resolve())}
        )
    except ServerUnreachable as cause:
        raise ServerUnreachable(f"{cause} {name} is not loaded there.") from cause
    if answer.is_success or (answer.status_code == 400 and ALREADY_LOADED in answer.text):
        return
    cure = (
        "Start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1."
        if answer.status_code == 404
        else "The server reads the folder itself: let it see this home's files, and allow the "
        "adapter's rank (--max-lora-rank)."
    )
    is_up = answer.status_code not in (502, 503, 504)  # which proxies answer while it starts
    raise (BackendUnavailable if is_up else ServerUnreachable)(
        f"{calls.address} did not load {name} ({answer.status_code}: "
        f"{calls.redact(answer.text)}). {cure}"
    )


def unload_adapters(
    base_url: str, api_key: SecretStr | None, *, names: Collection[str]
) -> list[str]:
    """Ask the server to unload those of the adapters `names` that it holds, whose memory it then
    frees; returns them. Raises ServerUnreachable if it cannot be reached.
    """
    calls = ServerCalls(base_url, api_key)
    listed = calls.get("/models")
    models = listed.json()["data"] if listed.is_success else []
    loaded = [model["id"] for model in models if model["id"] in names]
    return [
        name
        for name in loaded
        if calls.post("/unload_lora_adapter", {"lora_name": name}).is_success
    ]
