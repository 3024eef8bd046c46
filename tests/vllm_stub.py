"""A server that answers as vLLM documents, with a real policy behind it; faults can be planted."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import numpy as np

from rlhf_pipeline.generate.policy.causal_lm import Policy

MODEL = "served"


class VLLMStub(ThreadingHTTPServer):
    """Serves `policy` under each name. `cached` is the policy whose prefix cache the first token of
    an answer is read from. With `is_vllm` false it has only OpenAI's addresses, without
    `has_log_p` no log probabilities.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        cached: Policy | None = None,
        max_model_len: int | None = None,
        port: int = 0,
    ) -> None:
        super().__init__(("127.0.0.1", port), VLLMRequest)
        self.policy = policy
        self.cached = cached or policy
        self.max_model_len = max_model_len or policy.context_length
        self.is_vllm = self.has_log_p = True
        self.adapters: dict[str, str] = {}
        self.paths: list[str] = []
        self.models: list[str | None] = []  # that were asked

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def tokenize(self, body: dict[str, Any]) -> Any:
        ids = self.render(body["messages"])
        return {
            "count": len(ids),
            "max_model_len": self.max_model_len,
            "tokens": ids,
            "token_strs": None,
        }

    def complete(self, body: dict[str, Any]) -> Any:
        """`POST /v1/completions` of token ids for one token."""
        ids, policy = body["prompt"], self.policy
        next_log_p = (policy if "prompt_logprobs" in body else self.cached).predict_next(ids)
        allowed = body.get("allowed_token_ids") or range(len(next_log_p))
        token = max(allowed, key=lambda i: float(next_log_p[i]))
        is_end = token in policy.stop_ids()
        log_p = None
        if "prompt_logprobs" in body:
            values = policy.measure_log_p([ids])[0]
            log_p = [None] + [
                {str(i): {"logprob": float(v), "rank": 1, "decoded_token": ""}}
                for i, v in zip(ids[1:], values, strict=True)
            ]
        choice = {
            "index": 0,
            "text": "" if is_end else policy.tokenizer.decode([token]),
            "logprobs": {
                "tokens": [f"token_id:{token}"],
                "token_logprobs": [float(next_log_p[token])],
                "top_logprobs": [{}],
                "text_offset": [0],
            },
            "finish_reason": "stop" if is_end else "length",
            "prompt_logprobs": log_p,
        }
        return {"object": "text_completion", "choices": [choice]}

    def chat(self, body: dict[str, Any]) -> Any:
        """`POST /v1/chat/completions` for the first token."""
        log_p = self.policy.predict_next(self.render(body["messages"]))
        top = [
            {"token": self.policy.tokenizer.decode([int(i)]), "logprob": float(log_p[i])}
            for i in np.argsort(-log_p)[: body.get("top_logprobs", 1)]
        ]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": top[0]["token"]},
            "logprobs": {"content": [top[0] | {"top_logprobs": top}]} if self.has_log_p else None,
            "finish_reason": "length",
        }
        return {"object": "chat.completion", "choices": [choice]}

    def render(self, messages: list[dict[str, Any]]) -> list[int]:
        tokenizer = self.policy.tokenizer
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def load(self, body: dict[str, Any]) -> Any:
        self.adapters[body["lora_name"]] = body["lora_path"]

    def unload(self, body: dict[str, Any]) -> Any:
        del self.adapters[body["lora_name"]]


class VLLMRequest(BaseHTTPRequestHandler):
    server: VLLMStub

    def do_GET(self) -> None:
        self.reply(200, {"data": [{"id": name} for name in (MODEL, *self.server.adapters)]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        stub = self.server
        stub.paths.append(self.path)
        stub.models.append(body.get("model"))
        answers = {
            "/tokenize": stub.tokenize,
            "/v1/completions": stub.complete,
            "/v1/load_lora_adapter": stub.load,
            "/v1/unload_lora_adapter": stub.unload,
        }
        if body.get("model", MODEL) not in (MODEL, *stub.adapters):
            message = f"The model `{body['model']}` does not exist."
            error = {"message": message, "type": "NotFoundError", "param": "model", "code": 404}
            self.reply(404, {"error": error})
        elif self.path == "/v1/chat/completions":
            self.reply(200, stub.chat(body))
        elif stub.is_vllm and self.path in answers:
            self.reply(200, answers[self.path](body))
        else:
            self.reply(404, {"detail": "Not Found"})

    def reply(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...
