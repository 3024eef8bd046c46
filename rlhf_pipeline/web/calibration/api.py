"""API routes of calibrators, and of predictions compared with later votes."""

from typing import Annotated

from fastapi import Depends, Path, Query

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.api_types.filters import ProbeFilter
from rlhf_pipeline.permissions import Permission, Principal
from rlhf_pipeline.records import Text
from rlhf_pipeline.web.calibration import queries
from rlhf_pipeline.web.calibration.log import CalibrationOut
from rlhf_pipeline.web.calibration.queries import ProbedPair, ProbedPairFilter, ProbeOut
from rlhf_pipeline.web.lists import Paged
from rlhf_pipeline.web.routing import AnySite, api_router, needs, problem_responses

router = api_router("calibration")
Reader = Annotated[Principal, Depends(needs(Permission.METRICS_READ))]


@router.get("/calibrations")
def read_all(site: AnySite, _: Reader, asked: Paged) -> Page[CalibrationOut]:
    """All calibrators with their effect, and imported reports; the last fitted first."""
    return queries.page(site, cursor=asked.cursor, limit=asked.limit)


@router.get("/calibrations/probe")
def probe(site: AnySite, _: Reader, asked: Annotated[ProbeFilter, Query()]) -> ProbeOut:
    """A reliability diagram of predictions made before their votes: stated confidence against the
    share that was right, with counts and Wilson intervals. For a model with more than 1,000
    votes, the newest ones of the days are used; `category`, `source` and `group` (of annotators)
    choose among these. Chosen votes on fewer than 10 comparisons are withheld, and those of a group
    in which fewer than 3 annotators voted.
    """
    return queries.probe_of(site, asked)


@router.get("/calibrations/probe/pairs", responses=problem_responses(404))
def pairs(
    site: AnySite,
    principal: Annotated[Principal, Depends(needs(Permission.PREDICTIONS_MAKE))],
    asked: Annotated[ProbedPairFilter, Query()],
) -> Page[ProbedPair]:
    """The votes in a bin of the diagram, wrong predictions first."""
    return queries.pairs(site, principal, asked)[1]


@router.get("/calibrations/{reward_model}/{version}")
def read(
    site: AnySite,
    _: Reader,
    reward_model: Annotated[Text, Path(max_length=200)],
    version: Annotated[int, Path(ge=1, lt=2**31)],
) -> CalibrationOut:
    """One calibrator, by reward model (name@version) and its own version, with its reliability
    diagrams before and after calibration.
    """
    return queries.entry(site, reward_model, version)
