"""Which of two completions people would prefer, by the champion reward model. Knows requests and
answers; the model is `web.predictor`.
"""

from datetime import datetime
from typing import Annotated

from fastapi import Depends
from pydantic import BaseModel, Field

from rlhf_pipeline.api_types import MOST_IN_BATCH, LongText, Model
from rlhf_pipeline.champions import PairPrediction, Question
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.web.api.routing import api_router
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import needs_all_votes
from rlhf_pipeline.web.dependencies import AnySite

router = api_router("predictions")
MODEL = "a prediction by a model that is fitted to all votes"
Reader = Annotated[Principal, Depends(needs_all_votes(Permission.PREDICTIONS_MAKE, MODEL))]


class PairToPredict(Model):
    """Two completions of a prompt; they need not be of this project."""

    prompt: LongText
    completion_a: LongText
    completion_b: LongText


class PairsToPredict(Model):
    pairs: list[PairToPredict] = Field(min_length=1, max_length=MOST_IN_BATCH)


class PredictionOut(BaseModel):
    p_raw: float = Field(
        ge=0,
        le=1,
        description="P(a preferred) by the reward model; of the pair with its sides exchanged 1 - "
        "p",
    )
    p_calibrated: float = Field(ge=0, le=1, description="the same after calibration")
    score_a: float
    score_b: float
    features_hash: str = Field(description="of the texts as scored")


class PredictionsOut(BaseModel):
    """Answers in the order of the pairs, and what they rest on."""

    reward_model: str = Field(description="name@version")
    calibrator: str = Field(
        description="calibrator version of that reward model; none before it was calibrated"
    )
    data_hash: str | None = Field(description="of the pairs the reward model was fitted on")
    data_seq: int | None = Field(description="highest vote seq these rest on")
    predicted_at: datetime
    predictions: list[PredictionOut]


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
