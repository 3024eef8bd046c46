"""Which of two completions people would prefer, by the champion reward model. Knows requests and
answers; the model is `web.predictor`.
"""

from typing import Annotated

from fastapi import Depends

from rlhf_pipeline.api_types.predictions import (
    PairsToPredict,
    PairToPredict,
    PredictionOut,
    PredictionsOut,
)
from rlhf_pipeline.champions import PairPrediction, Question
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.web.api.routing import api_router
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import needs_all_votes
from rlhf_pipeline.web.dependencies import AnySite

router = api_router("predictions")
MODEL = "a prediction by a model that is fitted to all votes"
Reader = Annotated[Principal, Depends(needs_all_votes(Permission.PREDICTIONS_MAKE, MODEL))]


@router.post("/predictions")
def predict(
    site: AnySite, principal: Reader, body: PairToPredict | PairsToPredict
) -> PredictionsOut:
    """Which of two completions people would prefer: of one pair, or of up to fifty. Nothing is kept
    of it but the answer to its key.
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
