"""Runs any transformers causal LM as a policy that completes prompts and scores completions."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rlhf_pipeline.core.conversations import build_chat, render_transcript, split_turns
from rlhf_pipeline.core.errors import BackendUnavailable, CompletionError, ModelError, ModelNotFound
from rlhf_pipeline.core.parameters import Dtype
from rlhf_pipeline.generate.policy.batches import batch_by_logits
from rlhf_pipeline.generate.policy.devices import Placement, choose_placement
from rlhf_pipeline.generate.policy.sampling import Noise, choose_tokens, open_noise

Floats = npt.NDArray[np.float64]
DEFAULT_CONTEXT = 2048
CAUSAL_ARCHITECTURES = ("ForCausalLM", "LMHeadModel")
MARK = "rlhf-pipeline"  # a text to find again in what a chat template renders
# transformers changes global state while it loads: two threads at once miss tied weights
_LOADING = threading.Lock()
LOADING_ERRORS = (OSError, ValueError, KeyError, RuntimeError, TypeError)


@dataclass(frozen=True)
class GeneratedText:
    """One completion; `n_tokens` counts the end token, `finish_reason` is `length` if it was cut
    off.
    """

    text: str
    n_prompt_tokens: int
    n_tokens: int
    finish_reason: Literal["stop", "length"]


def load_policy(
    name_or_folder: str | Path,
    *,
    device: str = "cpu",
    dtype: Dtype = "float32",
    in_4bit: bool = False,
) -> "Policy":
    """Load the policy from a folder, or by hub id, onto a device: see `choose_placement`. With
    `in_4bit` its linear layers are frozen in NF4 (Dettmers et al. 2023), for adapters.

    Raises ModelNotFound if the folder does not exist, holds no causal language model or has damaged
    files, or if the hub has no such model or cannot be reached; ConfigurationError for a device
    that torch does not see.
    """
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = choose_placement(device, dtype)
    config = read_config(name_or_folder)
    source: dict[str, Any] = {"local_files_only": Path(name_or_folder).is_dir()}
    quantised = _quantise(place) if in_4bit else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(name_or_folder), **source)
        with _LOADING:
            model, loaded = AutoModelForCausalLM.from_pretrained(
                str(name_or_folder),
                config=config,
                dtype=place.dtype,
                output_loading_info=True,
                **source,
                **quantised,
            )
    except (*LOADING_ERRORS, SafetensorError) as cause:
        raise _damaged(name_or_folder, cause) from cause
    if loaded["missing_keys"]:
        raise ModelNotFound(
            f"Policy {name_or_folder} lacks {len(loaded['missing_keys'])} weights, first "
            f"{sorted(loaded['missing_keys'])[0]}. Give the folder that save_pretrained of the "
            "whole causal LM wrote; merge an adapter into its base first."
        )
    return Policy(model.eval().to(place.device), tokenizer, name=str(name_or_folder))


def load_prompt_format(name_or_folder: str | Path) -> "PromptFormat":
    """How a policy reads prompts, in a second whatever its size. Raises ModelNotFound as
    `load_policy`.
    """
    from transformers import AutoTokenizer

    config = read_config(name_or_folder)
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(name_or_folder), local_files_only=Path(name_or_folder).is_dir()
        )
    except LOADING_ERRORS as cause:
        raise _damaged(name_or_folder, cause) from cause
    return PromptFormat(config, tokenizer)


def read_config(name_or_folder: str | Path) -> Any:
    """The transformers configuration of a policy, without its weights. Raises ModelNotFound as
    `load_policy`.
    """
    from transformers import AutoConfig

    folder = Path(name_or_folder)
    is_folder = folder.is_dir()
    if not is_folder and _looks_like_path(name_or_folder):
        raise ModelNotFound(
            f"Policy folder {folder} does not exist. Run `rlhf init`, or give the folder or hub id "
            "of a causal LM."
        )
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise ModelNotFound(
            f"Policy folder {folder} holds a LoRA adapter without its base. Merge them "
            "(peft: merge_and_unload), and give the folder of the merged model."
        )
    if is_folder and not (folder / "config.json").is_file():
        raise ModelNotFound(
            f"Policy folder {folder} holds no config.json. Give a folder written by "
            "save_pretrained, or delete it and run `rlhf init`."
        )
    try:
        config = AutoConfig.from_pretrained(str(name_or_folder), local_files_only=is_folder)
    except LOADING_ERRORS as cause:
        raise _damaged(name_or_folder, cause) from cause
    built_for = list(config.architectures or ())
    is_causal = not built_for or any(name.endswith(CAUSAL_ARCHITECTURES) for name in built_for)
    # transformers would load a classifier with a new random head, and an encoder, such as a BERT,
    # as a model that sees the tokens that it predicts
    kind = "a sequence-to-sequence model" if config.is_encoder_decoder else "no causal LM"
    if config.is_encoder_decoder or not is_causal or _is_encoder(config):
        raise ModelNotFound(
            f"{name_or_folder} holds {kind} ({', '.join(built_for) or config.model_type}). Give "
            "a model that continues text, saved from AutoModelForCausalLM, such as a Llama or "
            "GPT-2."
        )
    return config


def _is_encoder(config: Any) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    reads_both_ways = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return reads_both_ways and not getattr(config, "is_decoder", False)


def _quantise(place: Placement) -> dict[str, Any]:
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=place.torch_dtype,
    )
    return {"quantization_config": config, "device_map": {"": place.device}}


def _damaged(name_or_folder: str | Path, cause: Exception) -> ModelNotFound:
    return ModelNotFound(
        f"Policy {name_or_folder} cannot be loaded ({type(cause).__name__}: {cause}). Check "
        "the folder's files or the hub id."
    )


class PromptFormat:
    """How a policy reads prompts, without its weights.

    Prompts go through the tokenizer's chat template if it has one; otherwise the model continues
    the plain prompt.
    """

    def __init__(self, config: Any, tokenizer: Any) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self._ends: dict[str, list[int]] = {}  # by the chat template

    @property
    def context_length(self) -> int:
        """Maximum number of tokens of prompt and completion together."""
        return int(getattr(self.config, "max_position_embeddings", None) or DEFAULT_CONTEXT)

    def format_prompt(self, prompt: str) -> str:
        """Format the prompt as the model reads it, ready for a completion to follow. Raises
        CompletionError if the chat template refuses it.
        """
        if self.tokenizer.chat_template is None:
            text = render_transcript(prompt)
            return f"{text}\n\nAssistant:" if split_turns(prompt) else text
        return self._render(self.build_chat(prompt), add_generation_prompt=True)

    def build_chat(self, prompt: str) -> list[dict[str, Any]]:
        """The messages that the chat template gets."""
        takes_tools = "tool_calls" in str(self.tokenizer.chat_template)
        chat = build_chat(prompt, takes_tools=takes_tools)
        if any(message["role"] == "system" for message in chat) and not self.takes_system:
            chat = build_chat(prompt, takes_tools=takes_tools, takes_system=False)
        for call in (call for message in chat for call in message.get("tool_calls", ())):
            with suppress(ValueError):  # templates write the arguments as JSON
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        return chat

    @property
    def takes_system(self) -> bool:
        """Whether the chat template writes system messages; some refuse or drop them."""
        chat = [{"role": "system", "content": MARK}, {"role": "user", "content": "a"}]
        try:
            return MARK in self._render(chat, add_generation_prompt=True)
        except CompletionError:
            return False

    def render_answer(self, prompt: str, completion: str) -> str | None:
        """What the chat template writes before a completion in a whole exchange, where that is not
        the prompt that is sampled; None where it is.
        """
        text = self.format_prompt(prompt)
        answer = {"role": "assistant", "content": completion}
        try:
            whole = self._render([*self.build_chat(prompt), answer], add_generation_prompt=False)
        except CompletionError as cause:
            return str(cause)
        if whole.startswith(text + completion):
            return None
        return whole.partition(completion)[0]

    def _render(self, chat: Sequence[Mapping[str, Any]], **how: bool) -> str:
        from jinja2 import TemplateError

        try:
            return str(self.tokenizer.apply_chat_template(chat, tokenize=False, **how))
        except (TemplateError, TypeError) as cause:
            raise CompletionError(
                f"The chat template refuses the prompt: {cause}. Give the prompt other messages, "
                "or the policy another template."
            ) from cause

    def space_completion(self, text: str, completion: str) -> str:
        """The completion as it follows the formatted prompt. Completions are kept without the
        whitespace around them, so without a chat template a space must part them from the prompt
        again.
        """
        has_template = self.tokenizer.chat_template is not None
        if has_template or not completion or not text or text[-1].isspace():
            return completion
        return f" {completion}"

    def tokenize_exchange(self, prompt: str, completion: str) -> tuple[list[int], list[int]]:
        """Token ids of the prompt, as sampling reads it, and of the completion with its end token.

        Training, likelihoods and divergences all read exchanges this way.
        """
        head = self.tokenize_prompt(prompt)
        text = self.format_prompt(prompt)
        spaced = self.space_completion(text, completion)
        whole = self._tokenize(text + spaced)
        # a token across the border would change the prompt
        is_prefix = whole[: len(head)] == head
        tail = whole[len(head) :] if is_prefix else self._tokenize(spaced, is_whole=False)
        return head, [*tail, *self.end_ids()]

    def tokenize_prompt(self, prompt: str) -> list[int]:
        """Token ids of the formatted prompt, at least one."""
        return self._tokenize(self.format_prompt(prompt)) or self.stop_ids()[:1]

    def stop_ids(self) -> list[int]:
        """The tokens at which sampling stops."""
        end = self.tokenizer.eos_token_id
        return [] if end is None else [int(end)]

    def end_ids(self) -> list[int]:
        """The token that ends a completion, in training and in likelihoods: the one that the chat
        template writes after an answer, else the tokenizer's. Empty without either.
        """
        template = str(self.tokenizer.chat_template)
        if template not in self._ends:
            self._ends[template] = self._find_end()
        return self._ends[template]

    def _find_end(self) -> list[int]:
        tokenizer = self.tokenizer
        own = tokenizer.eos_token_id
        if tokenizer.chat_template is not None:
            chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": MARK}]
            try:
                tail = self._render(chat, add_generation_prompt=False).rpartition(MARK)[2]
            except CompletionError:
                tail = ""
            first = tokenizer(tail.lstrip(), add_special_tokens=False)["input_ids"][:1]
            if first and first[0] in tokenizer.added_tokens_decoder:
                return [int(first[0])]
        return self.stop_ids()[:1] if own is None else [int(own)]

    def check_tokenizer(self, name: str) -> None:
        """Raise ModelError, which names the policy `name`, if its tokenizer has no end token or
        more tokens than the model.
        """
        if self.tokenizer.eos_token_id is None:
            raise ModelError(
                f"The tokenizer of {name} has no end token, so a completion would never end. Set "
                "eos_token in its tokenizer_config.json."
            )
        n_tokens = max(self.tokenizer.get_vocab().values()) + 1
        n_known = self.config.get_text_config().vocab_size
        if n_tokens > n_known:
            raise ModelError(
                f"The tokenizer of {name} has {n_tokens} tokens, but the model knows {n_known}. "
                "Give the tokenizer that it was trained with, or call resize_token_embeddings "
                f"({n_tokens}) and save it again."
            )

    def count_prompt_tokens(self, text: str) -> int:
        """Number of tokens of the formatted prompt."""
        return len(self._tokenize(self.format_prompt(text))) or 1  # a model reads at least one

    def count_tokens(self, completion: str) -> int:
        """Number of tokens of a completion and its end."""
        return len(self.tokenizer(completion, add_special_tokens=False)["input_ids"]) + 1

    def _tokenize(self, text: str, *, is_whole: bool = True) -> list[int]:
        # a chat template writes its own special tokens
        is_plain = is_whole and self.tokenizer.chat_template is None
        ids = self.tokenizer(text, add_special_tokens=is_plain)["input_ids"]
        return [int(i) for i in ids]


class Policy(PromptFormat):
    """A causal LM with its tokenizer. Every row is sampled from its own seed, so its text does not
    depend on its batch.
    """

    def __init__(self, model: Any, tokenizer: Any, *, name: str) -> None:
        super().__init__(model.config, tokenizer)
        self.model = model
        self.name = name

    def generate(
        self,
        prompts: Sequence[str],
        *,
        temperature: Sequence[float] | float = 1.0,
        top_p: Sequence[float] | float = 1.0,
        seeds: Sequence[int],
        max_new_tokens: int = 48,
        batch_size: int = 64,
    ) -> list[GeneratedText]:
        """Generate one completion per prompt, in order.

        Raises CompletionError for a prompt that leaves no room for `max_new_tokens` in the context,
        and if the number of temperatures, top_ps or seeds differs from the number of prompts.
        """
        n = len(prompts)
        temperatures = _expand_per_row(temperature, n, "temperatures")
        top_ps = _expand_per_row(top_p, n, "top_ps")
        if len(seeds) != n:
            raise CompletionError(f"{len(seeds)} seeds for {n} prompts. Give one seed per prompt.")
        ids = [self.tokenize_prompt(prompt) for prompt in prompts]
        self._check_room(ids, max_new_tokens)
        generations: dict[int, GeneratedText] = {}
        # Rows of similar length share a batch, which saves padding.
        order = sorted(range(n), key=lambda i: len(ids[i]))
        for start in range(0, n, batch_size):
            rows = order[start : start + batch_size]
            batch = self._generate_batch(
                [ids[i] for i in rows],
                temperatures[rows],
                top_ps[rows],
                [seeds[i] for i in rows],
                max_new_tokens,
            )
            generations.update(zip(rows, batch, strict=True))
        return [generations[i] for i in range(n)]

    def stream(
        self,
        prompt: str,
        watch: Callable[[list[int]], bool],
        *,
        temperature: float,
        top_p: float,
        seed: int,
        max_new_tokens: int,
    ) -> GeneratedText:
        """The same completion as `generate` makes of one prompt. `watch` gets all its tokens after
        each new one, and ends it by True. Raises CompletionError as `generate`.
        """
        ids = [self.tokenize_prompt(prompt)]
        self._check_room(ids, max_new_tokens)
        [generated] = self._generate_batch(
            ids, np.array([temperature]), np.array([top_p]), [seed], max_new_tokens, watch
        )
        return generated

    def save(self, folder: Path) -> None:
        """Write weights as safetensors, configuration and tokenizer in the layout that
        `load_policy` reads.
        """
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def log_likelihood(
        self, prompts: Sequence[str], completions: Sequence[str], *, batch_size: int = 64
    ) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Summed log probability (n,), in nats, of each completion and its end token given its
        prompt, and the number of tokens in each sum (n,).
        """
        pairs = [
            self.tokenize_exchange(prompt, completion)
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        sums = np.zeros(len(pairs))
        lengths = [len(prompt) + len(completion) for prompt, completion in pairs]
        for rows in batch_by_logits(lengths, self.model, max_rows=batch_size):
            sums[rows] = self._sum_log_p([pairs[i] for i in rows])
        return sums, np.array([len(completion) for _, completion in pairs], dtype=np.int64)

    def stop_ids(self) -> list[int]:
        ends = self.model.generation_config.eos_token_id
        return super().stop_ids() if ends is None else [int(e) for e in np.atleast_1d(ends)]

    def _pad_id(self) -> int:
        pad = self.tokenizer.pad_token_id
        return int(pad) if pad is not None else (self.stop_ids() or [0])[0]

    def _check_room(self, ids: Sequence[Sequence[int]], max_new_tokens: int) -> None:
        for index, row in enumerate(ids):
            if len(row) + max_new_tokens > self.context_length:
                which = "The prompt" if len(ids) == 1 else f"Prompt {index + 1} of {len(ids)}"
                raise CompletionError(
                    f"{which} has {len(row)} tokens; with {max_new_tokens} new ones that is "
                    f"more than the policy's context of {self.context_length}. Shorten the prompt "
                    "or allow fewer new tokens."
                )

    def _generate_batch(
        self,
        ids: Sequence[list[int]],
        temperatures: Floats,
        top_ps: Floats,
        seeds: Sequence[int],
        max_new_tokens: int,
        watch: Callable[[list[int]], bool] | None = None,
    ) -> list[GeneratedText]:
        import torch
        from transformers import GenerationConfig, LogitsProcessorList

        pad, ends = self._pad_id(), self.stop_ids()
        width = max(len(row) for row in ids)
        device = self.model.device
        input_ids = torch.tensor([[pad] * (width - len(row)) + row for row in ids], device=device)
        mask = torch.tensor(
            [[0] * (width - len(row)) + [1] * len(row) for row in ids], device=device
        )
        chooser = _TokenChooser(device, temperatures, top_ps, seeds, ends)
        # The chooser leaves one possible token per row, so transformers' greedy search picks that
        # one.
        config = GenerationConfig(
            do_sample=False,
            num_beams=1,
            max_new_tokens=max_new_tokens,
            eos_token_id=ends or None,
            pad_token_id=pad,
            repetition_penalty=1.0,
        )

        def is_over(all_ids: Any, _: Any, **__: Any) -> Any:
            tokens = all_ids[0, width:].tolist()
            is_ended = watch is not None and tokens[-1] not in ends and watch(tokens)
            return torch.full((len(all_ids),), is_ended, device=device)

        with torch.inference_mode():
            output = self.model.generate(
                input_ids=input_ids,
                attention_mask=mask,
                generation_config=config,
                logits_processor=LogitsProcessorList([chooser]),
                stopping_criteria=None if watch is None else [is_over],
            )
        return [
            self._build_generated(row, len(prompt), ends)
            for row, prompt in zip(output[:, width:].tolist(), ids, strict=True)
        ]

    def _build_generated(
        self, tokens: list[int], n_prompt_tokens: int, ends: Sequence[int]
    ) -> GeneratedText:
        stop = next((i for i, token in enumerate(tokens) if token in ends), None)
        return GeneratedText(
            self.decode_text(tokens[:stop]),
            n_prompt_tokens,
            len(tokens) if stop is None else stop + 1,
            "length" if stop is None else "stop",
        )

    def decode_text(self, tokens: Sequence[int]) -> str:
        """Decode a completion's tokens, without surrounding whitespace."""
        # A byte-level policy may draw NUL, which databases reject.
        return (
            str(self.tokenizer.decode(tokens, skip_special_tokens=True)).replace("\0", "").strip()
        )

    def measure_log_p(self, ids: Sequence[Sequence[int]]) -> list[Floats]:
        """Log probability, in nats, of each token of each row but the first, given those before
        it. The rows make one batch.
        """
        log_p = self._compute_log_p(ids)
        return [row[: len(tokens) - 1] for row, tokens in zip(log_p, ids, strict=True)]

    def predict_next(self, ids: Sequence[int]) -> Floats:
        """Log probability (vocabulary,), in nats, of the token after `ids`."""
        import torch

        with torch.inference_mode():
            rows = torch.tensor([list(ids)], device=self.model.device)
            log_p = self.model(input_ids=rows).logits[0, -1].double().log_softmax(-1)
        return np.asarray(log_p.cpu(), dtype=np.float64)

    def _sum_log_p(self, pairs: Sequence[tuple[list[int], list[int]]]) -> Floats:
        log_p = self.measure_log_p([[*prompt, *completion] for prompt, completion in pairs])
        return np.array(
            [row[len(p) - 1 :].sum() for row, (p, _) in zip(log_p, pairs, strict=True)],
            dtype=np.float64,
        )

    def _compute_log_p(self, ids: Sequence[Sequence[int]]) -> Floats:
        """(n, width - 1); what stands behind the end of a row means nothing."""
        import torch

        pad, device = self._pad_id(), self.model.device
        width = max(len(row) for row in ids)
        tokens = torch.tensor([[*row] + [pad] * (width - len(row)) for row in ids], device=device)
        mask = torch.tensor(
            [[1] * len(row) + [0] * (width - len(row)) for row in ids], device=device
        )
        with torch.inference_mode():
            logits = self.model(input_ids=tokens, attention_mask=mask).logits[:, :-1].double()
            log_p = logits.gather(-1, tokens[:, 1:, None])[..., 0] - logits.logsumexp(-1)
        return np.asarray(log_p.cpu(), dtype=np.float64)


class _TokenChooser:
    """A logits processor that draws each row's next token from the row's own noise."""

    def __init__(
        self,
        device: Any,
        temperatures: Floats,
        top_ps: Floats,
        seeds: Sequence[int],
        ends: Sequence[int],
    ) -> None:
        import torch

        self._temperatures, self._top_ps = (
            torch.tensor(values, device=device) for values in (temperatures, top_ps)
        )
        self._seeds = seeds
        self._ends = ends
        self._noise: Noise | None = None
        self._open = list(range(len(seeds)))

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self._noise = self._noise or open_noise(
            self._seeds, self._temperatures.tolist(), scores.shape[1], scores.device
        )
        rows = self._open
        logits = scores[rows].double()
        if not bool(logits.amax(dim=1).isfinite().all()):
            raise BackendUnavailable(
                "The policy's logits are not finite. Its weights are damaged: register another "
                "version."
            )
        tokens = choose_tokens(
            logits, self._temperatures[rows], self._top_ps[rows], self._noise.draw(rows)
        )
        only = scores.new_full(scores.shape, -float("inf"))
        only[:, 0] = 0.0  # finished rows: transformers overwrites the choice with the pad token
        only[rows, 0] = -float("inf")
        only[rows, tokens] = 0.0
        self._open = [
            row for row, token in zip(rows, tokens.tolist(), strict=True) if token not in self._ends
        ]
        return only


def _expand_per_row(value: Sequence[float] | float, n: int, what: str) -> Floats:
    values = (
        np.full(n, value, dtype=np.float64)
        if isinstance(value, int | float)
        else np.array(value, dtype=np.float64)
    )
    if len(values) != n or not np.isfinite(values).all() or (values < 0).any():
        raise CompletionError(
            f"{what} must be one number from 0 up, or one per prompt ({n}), not {value}."
        )
    return values


def _looks_like_path(name: str | Path) -> bool:
    """Whether the name cannot be a hub id, which is `name` or `owner/name`: not longer, not
    absolute.
    """
    text = str(name)
    return isinstance(name, Path) or text.startswith((".", "/", "~")) or text.count("/") > 1
