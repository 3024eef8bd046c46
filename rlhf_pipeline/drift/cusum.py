"""CUSUM: adds up the errors above their mean so far, less a slack."""

from typing import ClassVar

from pydantic import BaseModel, Field

from rlhf_pipeline.drift.frouros_detector import SummingDetector
from rlhf_pipeline.parameters import Parameters


class CUSUMParams(Parameters):
    """Parameters of CUSUM."""

    cusum_slack: float = Field(
        default=0.1, ge=0, le=1, description="CUSUM: rise of the error rate to ignore"
    )
    cusum_limit: float = Field(
        default=9.0, gt=0, description="CUSUM: surplus of errors at which drift is detected"
    )
    cusum_min_votes: int = Field(
        default=50, ge=10, description="CUSUM: votes before the first check"
    )


class CUSUM(SummingDetector):
    """Cumulative sum of the errors above their mean; Frouros does the arithmetic.

    The sum adds each error less the mean of all errors so far and less `cusum_slack`, never falls
    below 0, and fires above `cusum_limit`. The change is dated at the vote since which the sum is
    positive. CUSUM has no warnings.

    Page 1954, Continuous Inspection Schemes.

    >>> detector = CUSUM(CUSUMParams())
    >>> stream = [0, 0, 0, 1] * 100 + [1, 0] * 200
    >>> signals = [s for seq, e in enumerate(stream) if (s := detector.update(e, seq))]
    >>> [(s.level, 400 < s.seq < 600) for s in signals]
    [('drift', True)]
    """

    name: ClassVar[str] = "cusum"
    Params: ClassVar[type[BaseModel]] = CUSUMParams
    frouros = "CUSUM"
    config = {
        "delta": "cusum_slack",
        "lambda_": "cusum_limit",
        "min_num_instances": "cusum_min_votes",
    }
