"""Page-Hinkley: adds up the errors above their mean so far and forgets old ones."""

from typing import ClassVar

from pydantic import BaseModel, Field

from rlhf_pipeline.drift.frouros_detector import SummingDetector
from rlhf_pipeline.parameters import Parameters


class PageHinkleyParams(Parameters):
    """Parameters of Page-Hinkley."""

    page_hinkley_slack: float = Field(
        default=0.03, ge=0, le=1, description="Page-Hinkley: rise of the error rate to ignore"
    )
    page_hinkley_limit: float = Field(
        default=10.0, gt=0, description="Page-Hinkley: surplus of errors at which drift is detected"
    )
    page_hinkley_memory: float = Field(
        default=0.99,
        gt=0,
        le=1,
        description="Page-Hinkley: share of the sum that is kept from vote to vote; 1 forgets "
        "nothing",
    )
    page_hinkley_min_votes: int = Field(
        default=50, ge=10, description="Page-Hinkley: votes before the first check"
    )


class PageHinkley(SummingDetector):
    """Page-Hinkley test of a rising mean; Frouros does the arithmetic.

    The sum adds each error less the mean of all errors so far and less `page_hinkley_slack`, and
    fires above `page_hinkley_limit`. Frouros compares it with 0, not with its lowest value, so it
    is the forgetting that keeps it from falling out of reach: at a constant error rate it stays
    near -slack / (1 - memory). The change is dated at the vote since which the sum is positive.
    Page-Hinkley has no warnings.

    Page 1954, Continuous Inspection Schemes.

    >>> detector = PageHinkley(PageHinkleyParams())
    >>> stream = [0, 0, 0, 1] * 100 + [1, 0] * 200
    >>> signals = [s for seq, e in enumerate(stream) if (s := detector.update(e, seq))]
    >>> [(s.level, 400 < s.seq < 600) for s in signals]
    [('drift', True)]
    """

    name: ClassVar[str] = "page_hinkley"
    Params: ClassVar[type[BaseModel]] = PageHinkleyParams
    frouros = "PageHinkley"
    config = {
        "delta": "page_hinkley_slack",
        "lambda_": "page_hinkley_limit",
        "alpha": "page_hinkley_memory",
        "min_num_instances": "page_hinkley_min_votes",
    }
