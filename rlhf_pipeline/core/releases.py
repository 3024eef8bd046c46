"""Records of releases, and the rules that say what is deployed and what a roll back returns to."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import Field, computed_field

from rlhf_pipeline.core.records import ModelVersion, Promotion, Record

ModelState = Literal["candidate", "deployed", "deprecated", "archived"]
ModelStatus = Literal["testing", "deployed", "deprecated", "archived"]
Act = Literal["request", "approve", "reject", "archive", "restore"]


class ReleaseAct(Record):
    """A request to deploy a version, its answer, or the end of a version's use and its return."""

    act_id: int = 0
    act: Act
    model_name: str
    version: int
    actor: str
    reason: str
    acted_at: datetime
    request_id: int | None = Field(default=None, description="the request that it answers")
    replaces: int | None = Field(
        default=None, description="of a request: the version that was deployed then"
    )
    n_promotions: int = Field(
        default=0, description="of a request: promotions of the name until then; one more voids it"
    )
    checklist: tuple[str, ...] = Field(
        default=(), description="of a request: the lines to tick; of an approval: those ticked"
    )
    forced: str | None = Field(
        default=None, description="of a request: why the version was refused, which it overrides"
    )

    @property
    def label(self) -> str:
        return f"{self.model_name}@{self.version}"


class ReleaseEvent(Record):
    """One line of the history of releases."""

    at: datetime
    act: Literal["deploy", "roll back", "request", "approve", "reject", "archive", "restore"]
    model: str
    replaces: str | None = Field(description="The version that was deployed before.")
    actor: str
    reason: str
    checklist: tuple[str, ...] = Field(default=(), description="Lines that the approver ticked.")
    request_id: int | None = None
    deployment: dict[str, Any] | None = Field(
        default=None, description="What completed prompts from then on."
    )


class Deployment(Record):
    """What became of an order to deploy: done, or a request that waits for a second person."""

    promotion: Promotion | None = None
    request: ReleaseAct | None = None


class ReleasedModel(ModelVersion):
    """A registered version with its semantic version and its state."""

    semver: str
    state: ModelState
    aliases: tuple[str, ...] = ()
    deployed_at: datetime | None = Field(description="When it was deployed last.")
    removed_at: datetime | None = Field(
        default=None, description="When retention deleted its files."
    )
    code_commit: str | None = Field(default=None, description="Of the code that made it.")
    deployment: dict[str, Any] | None = Field(
        default=None, description="What completed prompts when it was deployed."
    )

    @computed_field  # type: ignore[prop-decorator]
    @property
    def id(self) -> str:
        """The version's name in addresses and commands."""
        return self.label

    @computed_field  # type: ignore[prop-decorator]
    @property
    def status(self) -> ModelStatus:
        """The state, where a candidate is `testing`."""
        return "testing" if self.state == "candidate" else self.state


def number_versions(models: Iterable[ModelVersion]) -> dict[int, str]:
    """The semantic version of each of one name's versions, oldest first.

    1.0.0 is the first. A policy trained from another adds 1 to the minor number of its line, a
    policy of another base begins the next major one. So does a reward model of another kind.

    >>> from rlhf_pipeline.core.records import ModelVersion
    >>> def policy(version, parent):
    ...     return ModelVersion(
    ...         name="demo.policy",
    ...         version=version,
    ...         kind="policy",
    ...         uri="",
    ...         content_hash="",
    ...         parent=parent and f"demo.policy@{parent}",
    ...     )
    >>> number_versions([policy(1, None), policy(2, 1), policy(3, None), policy(4, 2)])
    {1: '1.0.0', 2: '1.1.0', 3: '2.0.0', 4: '1.2.0'}
    """
    majors: dict[int, int] = {}
    n_of_line: list[int] = []
    numbers: dict[int, str] = {}
    kind: object = None
    for model in models:
        if model.kind == "policy":
            parent = int(model.parent.rpartition("@")[2]) if model.parent else 0
            major = majors.get(parent)
        else:
            is_same = n_of_line and model.params.get("kind") == kind
            major, kind = len(n_of_line) if is_same else None, model.params.get("kind")
        if major is None:
            n_of_line.append(0)
            major = len(n_of_line)
        numbers[model.version] = f"{major}.{n_of_line[major - 1]}.0"
        n_of_line[major - 1] += 1
        majors[model.version] = major
    return numbers


def find_archived(acts: Iterable[ReleaseAct]) -> set[int]:
    """The archived versions of one name."""
    archived = {}
    for act in acts:
        if act.act in ("archive", "restore"):
            archived[act.version] = act.act == "archive"
    return {version for version, is_archived in archived.items() if is_archived}


def find_state(version: int, history: Sequence[Promotion], archived: Iterable[int]) -> ModelState:
    """The last promotion names the deployed version, so there is one of each name."""
    if history and history[-1].version == version:
        return "deployed"
    if version in archived:
        return "archived"
    is_earlier = any(promotion.version == version for promotion in history)
    return "deprecated" if is_earlier else "candidate"


def find_previous(history: Sequence[Promotion], archived: Iterable[int] = ()) -> int | None:
    """The version that a roll back returns to: the one deployed before the present one. None at
    the start.

    A roll back takes the version that it leaves off the history, wherever it stands in it, so the
    next one goes further back and never returns to what was rolled back. Archived versions are
    passed over.
    """
    deployed: list[int] = []
    for promotion in history:
        if promotion.rolls_back:
            left = deployed[-1:]
            deployed = [version for version in deployed if version not in left]
            while deployed and deployed[-1] != promotion.version:
                deployed.pop()
            del deployed[-1:]
        deployed.append(promotion.version)
    passed_over = {*archived, *deployed[-1:]}
    return next((version for version in reversed(deployed) if version not in passed_over), None)


def find_waiting(
    acts: Sequence[ReleaseAct], histories: dict[str, Sequence[Promotion]]
) -> list[ReleaseAct]:
    """Requests that nobody answered, oldest first. A promotion since voids a request: its evidence
    is against another version.
    """
    answered = {act.request_id for act in acts}
    return [
        act
        for act in acts
        if act.act == "request"
        and act.act_id not in answered
        and len(histories.get(act.model_name, ())) == act.n_promotions
    ]


def find_deployed(events: Iterable[ReleaseEvent], at: datetime) -> list[ReleaseEvent]:
    """What put the version of each name there that was deployed at that time; `events` oldest
    first.
    """
    deployed = {
        event.model.rpartition("@")[0]: event
        for event in events
        if event.act in ("deploy", "roll back") and event.at <= at
    }
    return list(deployed.values())
