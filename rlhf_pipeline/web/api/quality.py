"""How carefully people vote. Knows requests; figures are `web.quality`'s."""

from typing import Annotated

from fastapi import Depends

from rlhf_pipeline.api_types.project import QualityOut
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.web import quality
from rlhf_pipeline.web.api.routing import api_router
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs

router = api_router("quality")


@router.get("/quality")
def read(
    site: AnySite, principal: Annotated[Principal, Depends(needs(Permission.VOTES_READ))]
) -> QualityOut:
    """Per annotator the votes that are too fast to have been read, the same as the one before, or
    of the same two completions again, with intervals, the most doubtful first; `GET votes` with
    `mark` lists them. A machine's votes are left out."""
    return quality.project_quality(site, principal)
