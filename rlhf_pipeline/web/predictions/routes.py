"""Routes of predictions by the reward model, and of completions made on request."""

from typing import Annotated, Any

from fastapi import Depends
from fastapi.responses import StreamingResponse
from pydantic import Field

from rlhf_pipeline.core.api_types.base import MOST_IN_BATCH, LongText, RequestBody
from rlhf_pipeline.core.api_types.project import PairToPredict, PredictionBasis, Predictions
from rlhf_pipeline.generate.completions import CompletionParams
from rlhf_pipeline.learn.champions import Question
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.routing import AnySite, api_router, needs

predictions = api_router("predictions")
Reader = Annotated[Principal, Depends(needs(Permission.PREDICTIONS_MAKE))]


class ToComplete(RequestBody):
    """A prompt and how to sample its completion."""

    prompt: Annotated[LongText, Field(min_length=1, pattern=r"\S")]
    system: LongText | None = None
    temperature: float = Field(default=0.7, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=256, ge=1, le=32768)
    seed: int = Field(
        default=0,
        ge=0,
        le=2**31 - 1,
        description="Another seed gives another completion; the same seed returns the stored one.",
    )


class PairsToPredict(RequestBody):
    pairs: list[PairToPredict] = Field(min_length=1, max_length=MOST_IN_BATCH)


@predictions.post("/predictions")
def predict(site: AnySite, principal: Reader, body: PairToPredict | PairsToPredict) -> Predictions:
    """Predict which of two completions people prefer, for one pair or up to fifty. Nothing is
    stored.
    """
    pairs = body.pairs if isinstance(body, PairsToPredict) else [body]
    answers = site.predictor.predict([Question(**pair.model_dump()) for pair in pairs])
    basis = answers[0].model_dump(include=set(PredictionBasis.model_fields))
    return Predictions(**basis, predictions=answers)


completions = api_router("completions")
Asker = Annotated[Principal, Depends(needs(Permission.PREDICTIONS_MAKE))]
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events `piece` ({text}) as they arrive, `again` if the stream broke and "
        "earlier pieces are void, and finally `completion` (the whole text as stored) or `failed` "
        "({error}).",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


@completions.post("/completions:stream", responses=EVENTS, response_class=StreamingResponse)
def stream(site: AnySite, _: Asker, body: ToComplete) -> StreamingResponse:
    """One completion by the configured provider, as server-sent events. It is stored, and the same
    request is answered from the store.
    """
    params = CompletionParams(
        k=1,
        temperatures=[body.temperature],
        top_ps=[body.top_p],
        max_new_tokens=body.max_tokens,
        seed=body.seed,
        system=body.system,
    )
    events = site.completer.stream(body.prompt, params)
    return StreamingResponse(events, media_type="text/event-stream")
