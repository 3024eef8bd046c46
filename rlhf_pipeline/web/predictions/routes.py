"""Routes of predictions by the reward model."""

from typing import Annotated

from fastapi import Depends
from pydantic import Field

from rlhf_pipeline.core.api_types.base import MOST_IN_BATCH, RequestBody
from rlhf_pipeline.core.api_types.project import PairToPredict, PredictionBasis, Predictions
from rlhf_pipeline.learn.champions import Question
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.routing import AnySite, api_router, needs

predictions = api_router("predictions")
Reader = Annotated[Principal, Depends(needs(Permission.PREDICTIONS_MAKE))]


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
