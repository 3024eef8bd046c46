"""A tiny initialised home, and a way to call `rlhf` in it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rlhf_pipeline.cli import app
from tests.learnt_home import LearntHome, voted_home

Rlhf = Callable[..., Result]


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with random weights over bytes: the smallest folder that is a policy."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-policy")
    symbols = ["<pad>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    raw = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(symbols)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    shape = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    ends = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    LlamaForCausalLM(
        LlamaConfig(vocab_size=len(symbols), max_position_embeddings=128, **shape, **ends)
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def initialised(tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An RLHF_HOME right after `rlhf init`. Shared by tests: they only read it, or write to
    `--out`.
    """
    home = tmp_path_factory.mktemp("initialised") / "home"
    result = CliRunner().invoke(
        app,
        ["init"],
        env={"RLHF_HOME": str(home), "RLHF_POLICY": str(tiny_policy)},
        catch_exceptions=False,
    )
    assert result.exit_code == 0
    return home


@pytest.fixture(scope="session")
def voted(tmp_path_factory: pytest.TempPathFactory) -> LearntHome:
    """Comparisons and votes, and no model. Read only; who changes one takes a copy."""
    return voted_home(tmp_path_factory.mktemp("voted"))


@pytest.fixture
def rlhf(initialised: Path, tiny_policy: Path) -> Rlhf:
    """`rlhf("models", "list")` in the initialised home; `home=` names another. Errors that the
    library raises come through.
    """

    def call(*arguments: str, home: Path = initialised) -> Result:
        environ = {"RLHF_HOME": str(home), "RLHF_POLICY": str(tiny_policy), "COLUMNS": "200"}
        return CliRunner().invoke(app, arguments, env=environ, catch_exceptions=False)

    return call
