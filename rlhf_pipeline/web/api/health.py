"""Whether the app is there, for those who keep it running. Tells nothing else."""

from fastapi import Depends

from rlhf_pipeline.api_types.project import Health
from rlhf_pipeline.web.api.routing import api_router
from rlhf_pipeline.web.dependencies import AnySite, public

router = api_router("health")
OPEN = [Depends(public("asked by supervisors; tells no data"))]


@router.get("/healthz", dependencies=OPEN)
def alive() -> Health:
    """The process answers."""
    return Health(status="ok")


@router.get("/readyz", dependencies=OPEN)
def ready(site: AnySite) -> Health:
    """The database answers too; 503 where it does not."""
    site.store.votes.max_seq()
    return Health(status="ok")
