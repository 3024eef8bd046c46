"""Loads a policy's LoRA adapter into a running vLLM server, under the name of its version."""

from pathlib import Path

from pydantic import SecretStr

from rlhf_pipeline.core.errors import BackendUnavailable
from rlhf_pipeline.generate.completions.redaction import address_of, redact, secrets_of

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

    Raises BackendUnavailable, without the key, if the server refuses or cannot be reached.
    """
    import httpx2

    url = httpx2.URL(base_url)
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key.get_secret_value()}"}
    address = address_of(base_url)
    try:
        answer = httpx2.post(
            f"{address.rstrip('/')}/load_lora_adapter",
            json={"lora_name": name, "lora_path": str(folder.resolve())},
            headers=headers,
            params=url.params,
            auth=(url.username, url.password) if url.userinfo else None,
            timeout=timeout_s,
        )
    except httpx2.HTTPError as cause:
        raise BackendUnavailable(
            f"{address} cannot be reached ({type(cause).__name__}), so {name} is not loaded there. "
            "Start the server, or set base_url."
        ) from cause
    if answer.is_success or (answer.status_code == 400 and ALREADY_LOADED in answer.text):
        return
    cure = (
        "Start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1."
        if answer.status_code == 404
        else "The server reads the folder itself: let it see this home's files, and allow the "
        "adapter's rank (--max-lora-rank)."
    )
    key = () if api_key is None else (api_key.get_secret_value(),)
    message = redact(answer.text, *secrets_of(base_url), *key)
    raise BackendUnavailable(
        f"{address} did not load {name} ({answer.status_code}: {message}). {cure}"
    )
