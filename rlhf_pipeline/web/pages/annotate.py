"""The page where people judge. Knows its keys; cards and votes go by the API."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from rlhf_pipeline.permissions import Permission
from rlhf_pipeline.web.auth import Principal
from rlhf_pipeline.web.dependencies import AnySite, needs
from rlhf_pipeline.web.pages.rendering import render

router = APIRouter()
Annotator = Annotated[Principal, Depends(needs(Permission.VOTES_CAST))]


@dataclass(frozen=True)
class ScaleStep:
    """Of one step of the scale."""

    side: str
    short: str
    label: str


def _scale_step(side: str, degree: str) -> ScaleStep:
    return ScaleStep(side, degree, f"{side} is {degree} better")


SCALE = (
    ("1", "a", 4, _scale_step("A", "by far")),
    ("2", "a", 3, _scale_step("A", "clearly")),
    ("3", "a", 2, _scale_step("A", "somewhat")),
    ("4", "a", 1, _scale_step("A", "slightly")),
    ("5", "tie", None, ScaleStep("=", "equal", "Equally good")),
    ("6", "b", 1, _scale_step("B", "slightly")),
    ("7", "b", 2, _scale_step("B", "somewhat")),
    ("8", "b", 3, _scale_step("B", "clearly")),
    ("9", "b", 4, _scale_step("B", "by far")),
)

KEY_MAP = (
    ("1234", "A is better: by far, clearly, somewhat, slightly"),
    ("5=", "equally good"),
    ("6789", "B is better: slightly, somewhat, clearly, by far"),
    ("0", "both bad"),
    ("s", "skip: somebody else judges it, it does not come back"),
    (
        ("u", "Backspace"),
        "take the last vote back, and the one before it: the last ten, for as long as the project "
        "allows",
    ),
    ("r", "write a reason; Enter leaves the field, and casts a vote that waits for it"),
    ("c", "how sure: then 5 for 50 % to 9 for 90 %, 0 for 100 %"),
    ("d", "rubric: then a, b or = for each dimension, arrows to move, Enter to leave"),
    (
        ("+", "-"),
        "mark selected text: it speaks for, or against, its completion; the same again takes the "
        "mark away",
    ),
    (
        "h",
        "select text by keys: arrows move, with shift they widen, Tab changes the side, Escape "
        "ends",
    ),
    ("f", "flag: personal data is shown"),
    ("i", "flag: a completion says which model wrote it"),
    ("x", "flag: cannot be read"),
    ("m", "the text as it was written, or with its formatting"),
    ("o", "the whole prompt"),
    (("↑", "↓", "Space"), "scroll both completions"),
    ("g", "guidelines"),
    ("p", "pause: hides the comparison and stops the clock"),
    ("v", "fast or careful: in careful mode a key chooses and Enter casts"),
    ("?", "this table; Escape closes it"),
)


@router.get("/annotate")
def annotate(site: AnySite, request: Request, principal: Annotator) -> Response:
    return render("annotate.html", request, site, principal, scale=SCALE, key_map=KEY_MAP)
