"""Calls of a model server beside completions: its address, key and errors."""

from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from rlhf_pipeline.core.errors import ServerUnreachable
from rlhf_pipeline.generate.completions.redaction import address_of, redact, secrets_of

if TYPE_CHECKING:
    import httpx2


class ServerCalls:
    """Calls the server at `base_url`, which ends in `/v1`. Errors contain no key."""

    def __init__(self, base_url: str, api_key: SecretStr | None, timeout_s: float = 60.0) -> None:
        self.address = address_of(base_url).rstrip("/")
        self._base_url = base_url
        self._key = "" if api_key is None else api_key.get_secret_value()
        self._timeout_s = timeout_s

    def post(self, path: str, body: dict[str, Any], *, of_root: bool = False) -> "httpx2.Response":
        """The answer, whatever its status. `of_root`: of a path beside `/v1`. Raises
        ServerUnreachable if the server cannot be reached.
        """
        return self._send("POST", path, of_root, json=body)

    def get(self, path: str) -> "httpx2.Response":
        """As `post`."""
        return self._send("GET", path, of_root=False)

    def redact(self, message: object) -> str:
        """A message of the server without secrets."""
        return redact(message, *secrets_of(self._base_url), *filter(None, (self._key,)))

    def _send(self, method: str, path: str, of_root: bool, **more: Any) -> "httpx2.Response":
        import httpx2

        url = httpx2.URL(self._base_url)
        root = self.address.removesuffix("/v1") if of_root else self.address
        try:
            return httpx2.request(
                method,
                f"{root}{path}",
                headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
                params=url.params,
                auth=(url.username, url.password) if url.userinfo else None,
                timeout=self._timeout_s,
                **more,
            )
        except httpx2.HTTPError as cause:
            raise ServerUnreachable(
                f"{self.address} cannot be reached ({type(cause).__name__}). Start the server, or "
                "set base_url."
            ) from cause
