"""Makes a promoted policy the one that completes prompts, or says why it is not."""

from pathlib import Path

from rlhf_pipeline.core.config import Settings
from rlhf_pipeline.core.errors import BackendUnavailable, ServerUnreachable
from rlhf_pipeline.core.records import ModelVersion
from rlhf_pipeline.core.secret_files import provider_key
from rlhf_pipeline.generate.completions.adapter_server import ADAPTER, load_adapter, read_base_hash


def serve(
    settings: Settings, version: ModelVersion, folder: Path, base: ModelVersion
) -> str | None:
    """Let the backend of the settings complete with `version`, whose files are in `folder`; returns
    the reason if it does not.

    The local backend loads the champion itself. A server gets the LoRA adapter, which fits only the
    weights it was trained on: those of `base`, the first policy of its line, which the server
    holds. Raises ServerUnreachable.
    """
    backend = settings.completion_backend
    if backend == "local":
        return None
    if backend != "openai_compatible" or not settings.load_adapters:
        name = settings.api_model if backend == "openai_compatible" else f"backend {backend}"
        return (
            f"completions come from {name}. Set load_adapters for a vLLM server, or serve "
            f"the files of `rlhf models export {version.label} DIR` and set api_model"
        )
    if not (folder / ADAPTER).is_dir():
        return (
            f"{version.label} has no LoRA adapter to load into {settings.api_model}. Train with "
            "lora_rank above 0, or serve its merged files"
        )
    if read_base_hash(folder / ADAPTER) != base.content_hash:
        return (
            f"the adapter of {version.label} was not trained on the first policy, whose weights "
            "the server holds. Serve its merged files"
        )
    try:
        load_adapter(
            settings.base_url, provider_key(settings), name=version.label, folder=folder / ADAPTER
        )
    except ServerUnreachable:
        raise
    except BackendUnavailable as cause:
        return str(cause)
    return None
