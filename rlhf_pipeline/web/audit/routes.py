"""Routes of the audit chain: read, export and verify it."""

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import Field

from rlhf_pipeline.core.api_types.base import Answer, Page
from rlhf_pipeline.core.api_types.filters import AuditFilter
from rlhf_pipeline.core.errors import StoreError
from rlhf_pipeline.store import Store
from rlhf_pipeline.store.audit_chain import AuditLink
from rlhf_pipeline.web.lists import (
    FilterField,
    ListPage,
    RowList,
    make_cursor,
    page_filter,
    parse_cursor,
    render_list,
    send_csv,
    wants_csv,
)
from rlhf_pipeline.web.permissions import Permission, Principal
from rlhf_pipeline.web.rendering import names_for
from rlhf_pipeline.web.routing import AnySite, SignedIn, api_router, needs
from rlhf_pipeline.web.site import Site

api = api_router("audit")
pages = APIRouter()
Asked = Annotated[AuditFilter, Query()]
Shown = Annotated[AuditFilter, page_filter(AuditFilter)]
AUDIT = RowList("Audit", "/audit", "audit/page.html", AuditLink, key="seq")
EXPORTED_AT_ONCE = 1000
LINES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One link per line, oldest first.",
        "content": {"application/jsonl": {"schema": {"type": "string"}}},
    }
}
Verifier = Annotated[Principal, Depends(needs(Permission.AUDIT_VERIFY))]


class Verification(Answer):
    holds: bool
    n_links: int = Field(description="Number of links verified; 0 if the chain is broken.")
    broken_at: str | None = Field(description="The first row that was changed, and how.")


@api.get("/audit")
def read(site: AnySite, filters: Asked) -> Page[AuditLink]:
    """Actions, newest first. A page of rare actions may be empty and still have a `next`."""
    place = parse_cursor(filters.cursor, int)
    links, following = site.store.audit.page(filters, before_seq=place[0] if place else None)
    return Page(
        items=links,
        next=make_cursor(following) if following else None,
    )


@api.get("/audit/export", responses=LINES, response_class=StreamingResponse)
def export(site: AnySite) -> StreamingResponse:
    """The whole chain as JSON lines, for verification elsewhere."""
    return StreamingResponse(_export_lines(site.store), media_type="application/jsonl")


@api.post("/audit:verify", dependencies=[Depends(needs(Permission.AUDIT_VERIFY))])
def verify(site: AnySite) -> Verification:
    """Verify the chain, and every vote against its link."""
    try:
        return Verification(holds=True, n_links=site.store.audit.verify(), broken_at=None)
    except StoreError as broken:
        return Verification(holds=False, n_links=0, broken_at=str(broken))


def _export_lines(store: Store) -> Iterator[str]:
    after = 0
    while links := store.audit.after(after, limit=EXPORTED_AT_ONCE):
        yield "".join(f"{link.model_dump_json()}\n" for link in links)
        after = links[-1].seq


@pages.get("/audit")
def show_page(site: AnySite, request: Request, principal: SignedIn, filters: Shown) -> Response:
    if wants_csv(request):
        return send_csv(AUDIT, filters, lambda part: read(site, part))
    return _render_page(site, request, principal, filters)


@pages.post("/audit/verify")
def show_verification(site: AnySite, request: Request, principal: Verifier) -> Response:
    return _render_page(site, request, principal, AuditFilter(), verification=verify(site))


def _render_page(
    site: Site,
    request: Request,
    principal: Principal,
    filters: AuditFilter,
    *,
    verification: Verification | None = None,
) -> Response:
    may_read = principal.may(Permission.AUDIT_READ)  # else the verdict without the list
    names = names_for(site, principal)
    fields = [
        FilterField("object_id", "Object", "search"),
        FilterField("action", "Action, or users.*", "search"),
        FilterField("actor", "Actor", choices=names),
    ]
    page = read(site, filters) if may_read else Page[AuditLink](items=(), next=None)
    list_page = ListPage(filters, page, fields, n_rows=site.store.audit.head()[0])
    return render_list(
        AUDIT, request, site, principal, list_page, names=names, verification=verification
    )
