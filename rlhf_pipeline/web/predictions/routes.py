"""Routes of predictions by the reward model, and of completions made on request."""

from typing import Annotated, Any

from fastapi import Depends
from fastapi.responses import StreamingResponse

from rlhf_pipeline.api_types.predictions import (
    PairsToPredict,
    PairToPredict,
    PredictionOut,
    PredictionsOut,
    ToComplete,
)
from rlhf_pipeline.champions import PairPrediction, Question
from rlhf_pipeline.completions import CompletionParams
from rlhf_pipeline.permissions import Permission, Principal
from rlhf_pipeline.web.routing import AnySite, api_router, needs

predictions = api_router("predictions")
Reader = Annotated[Principal, Depends(needs(Permission.PREDICTIONS_MAKE))]


@predictions.post("/predictions")
def predict(
    site: AnySite, principal: Reader, body: PairToPredict | PairsToPredict
) -> PredictionsOut:
    """Predict which of two completions people prefer, for one pair or up to fifty. Nothing is
    stored.
    """
    asked = body.pairs if isinstance(body, PairsToPredict) else [body]
    answers = site.predictor.predict([Question(**pair.model_dump()) for pair in asked])
    return PredictionsOut(
        **_shared_fields(answers[0]),
        predictions=[PredictionOut(**_pair_fields(answer)) for answer in answers],
    )


def _shared_fields(answer: PairPrediction) -> dict[str, object]:
    return answer.model_dump(include=set(PredictionsOut.model_fields))


def _pair_fields(answer: PairPrediction) -> dict[str, object]:
    return answer.model_dump(include=set(PredictionOut.model_fields))


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
