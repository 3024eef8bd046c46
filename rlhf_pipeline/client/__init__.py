"""The typed client of the REST API: `Client` and `AsyncClient`.

with Client("http://127.0.0.1:8080", token="rlhf_…") as api:
    for card in api.lease(5).cards:
        api.vote("a", assignment_id=card.assignment_id, strength=3)
"""

from rlhf_pipeline.client.asynchronous import AsyncClient
from rlhf_pipeline.client.calls import VoteBody
from rlhf_pipeline.client.synchronous import Client

__all__ = ["AsyncClient", "Client", "VoteBody"]
