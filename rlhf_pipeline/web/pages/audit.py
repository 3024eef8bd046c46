"""The audit chain as a page. Knows filters; links and their verification are the API's."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from rlhf_pipeline.api_types.project import Verification
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.web.api import audit
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import needs_all_votes
from rlhf_pipeline.web.dependencies import AnySite
from rlhf_pipeline.web.pages.rendering import names_for, query_of, render
from rlhf_pipeline.web.pagination import Cursor
from rlhf_pipeline.web.site import Site

router = APIRouter()
Reader = Annotated[Principal, Depends(needs_all_votes(Permission.AUDIT_READ, audit.CHAIN))]
Verifier = Annotated[Principal, Depends(needs_all_votes(Permission.AUDIT_VERIFY, audit.CHAIN))]
SHOWN = 50


class AuditFilters:
    """What the address asks for; empty means all."""

    def __init__(
        self,
        actor: Annotated[str, Query(max_length=200)] = "",
        action: Annotated[str, Query(max_length=200)] = "",
        object_id: Annotated[str, Query(max_length=200)] = "",
    ):
        self.actor, self.action, self.object_id = (
            word.strip().replace("\x00", "") for word in (actor, action, object_id)
        )

    @property
    def query(self) -> str:
        return query_of(vars(self))


@router.get("/audit")
def read(
    site: AnySite,
    request: Request,
    principal: Reader,
    filters: Annotated[AuditFilters, Depends()],
    cursor: Cursor = None,
) -> Response:
    return _render_page(site, request, principal, filters, cursor=cursor)


@router.post("/audit/verify")
def verify(site: AnySite, request: Request, principal: Verifier) -> Response:
    return _render_page(site, request, principal, AuditFilters(), verification=audit.verify(site))


def _render_page(
    site: Site,
    request: Request,
    principal: Principal,
    filters: AuditFilters,
    *,
    cursor: str | None = None,
    verification: Verification | None = None,
) -> Response:
    # A page of links is read only by those who may: whoever may verify alone is shown the verdict.
    found = None
    if principal.may(Permission.AUDIT_READ):
        found = audit.read(
            site,
            filters.actor or None,
            filters.action or None,
            filters.object_id or None,
            cursor,
            SHOWN,
        )
    return render(
        "audit.html",
        request,
        site,
        principal,
        page=found or {"items": [], "next": None},
        filters=filters,
        query=filters.query,
        verification=verification,
        names=names_for(site, principal),
    )
