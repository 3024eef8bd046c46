"""Guidelines and rules: read and edit, each edit a new version. Knows versions; knows no
annotator.
"""

from typing import Annotated

from fastapi import Depends, Path, Response

from rlhf_pipeline.api_types.base import Page
from rlhf_pipeline.api_types.project import (
    GuidelineOut,
    NewGuideline,
    NewRules,
    RulesOut,
    RulesRead,
)
from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.records import AnnotationRules
from rlhf_pipeline.web.api.routing import api_router, problem_responses
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.blindness import blind_reader_id
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.etags import IfMatch, etag_of, require_version
from rlhf_pipeline.web.idempotency import runs_once
from rlhf_pipeline.web.problems import Problem

router = api_router("guidelines")
Version = Annotated[int, Path(ge=1, le=10**9)]
READER = [Depends(needs(Permission.GUIDELINES_READ))]
RulesReader = Annotated[Principal, Depends(needs(Permission.RULES_READ))]
Editor = Annotated[Principal, Depends(needs(Permission.GUIDELINES_WRITE))]
RulesEditor = Annotated[Principal, Depends(needs(Permission.RULES_WRITE))]


@router.get("/guidelines", dependencies=READER)
def read_all(site: AnySite, response: Response) -> Page[GuidelineOut]:
    """Every version, newest first; the ETag is that of the newest, "0" before the first."""
    found = site.store.guidelines.all()
    response.headers["ETag"] = etag_of(found[0].version if found else 0)
    return Page(items=[GuidelineOut.model_validate(one.model_dump()) for one in found], next=None)


@router.get("/guidelines/{version}", dependencies=READER)
def read(site: AnySite, response: Response, version: Version) -> GuidelineOut:
    """One version."""
    response.headers["ETag"] = etag_of(version)
    return GuidelineOut.model_validate(site.store.guidelines.get(version).model_dump())


@router.post("/guidelines", status_code=201, responses=problem_responses(412, 428))
@runs_once()
def add(
    site: AnySite,
    principal: Editor,
    response: Response,
    body: NewGuideline,
    if_match: IfMatch = None,
) -> GuidelineOut:
    """The next version; If-Match is the one it was made of ("0" for the first)."""
    guideline = site.store.guidelines.add(
        body.text, after=require_version(if_match), actor=principal.user_id
    )
    site.terms.forget()
    response.headers["ETag"] = etag_of(guideline.version)
    return GuidelineOut.model_validate(guideline.model_dump())


@router.get("/rules", tags=["rules"])
def read_rules(site: AnySite, principal: RulesReader, response: Response) -> RulesOut:
    """How cards are dealt and judged. The seed, which tells the hidden cards, only for auditors who
    do not vote, and for admins.
    """
    version, rules = site.store.rules.latest()
    response.headers["ETag"] = etag_of(version)
    return _build_rules(principal, version, rules)


@router.put("/rules", responses=problem_responses(412, 428), tags=["rules"])
def put_rules(
    site: AnySite,
    principal: RulesEditor,
    response: Response,
    body: NewRules,
    if_match: IfMatch = None,
) -> RulesOut:
    """All of them anew, for cards dealt from now on; what is left out is the default, but seed and
    agreement_votes stay. Only an admin sets another seed."""
    if body.seed is not None and blind_reader_id(principal) is not None:
        said = "tells which cards are hidden ones, and you vote. Leave it out: it stays"
        raise Problem(403, f"The seed {said}.", kind="forbidden", errors=[("body.seed", said)])
    held = site.store.rules.latest()[1]
    kept = {
        name: getattr(held, name)
        for name in ("seed", "agreement_votes")
        if getattr(body, name) is None
    }
    rules = AnnotationRules.model_validate(body.model_dump() | kept)
    version = site.store.rules.put(rules, after=require_version(if_match), actor=principal.user_id)
    site.terms.forget()
    response.headers["ETag"] = etag_of(version)
    return _build_rules(principal, version, rules)


def _build_rules(principal: Principal, version: int, rules: AnnotationRules) -> RulesOut:
    shows_seed = blind_reader_id(principal) is None and principal.may(Permission.AUDIT_READ)
    return RulesOut(
        version=version,
        rules=RulesRead.model_validate(rules.model_dump() | ({} if shows_seed else {"seed": None})),
    )
