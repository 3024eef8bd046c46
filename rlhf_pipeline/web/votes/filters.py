"""The filters of the list of votes, as its address states them; an empty one takes all."""

from typing import Annotated

from fastapi import Depends, Query
from pydantic import BeforeValidator, Field

from rlhf_pipeline.api_types.votes import Flag
from rlhf_pipeline.store.vote_lists import VoteFilter, VoteStatus
from rlhf_pipeline.votes.quality import Mark
from rlhf_pipeline.web.charts import ChartFilter, Day, Days

EMPTY = BeforeValidator(lambda value: value or None)
LAST_SEQ = 2**53  # exact in JSON


class VotedOn:
    """What was voted on."""

    def __init__(
        self,
        category: ChartFilter = None,
        source: ChartFilter = None,
        q: Annotated[
            ChartFilter, Query(description="Words in the reason or in the prompt.")
        ] = None,
    ):
        self.category, self.source, self.q = category, source, q


class VotedWhen:
    """First and last day of the votes, and the number of the last one."""

    def __init__(
        self,
        days: Days,
        day: Day = None,
        up_to: Annotated[
            Annotated[int, Field(ge=1, le=LAST_SEQ)] | None,
            EMPTY,
            Query(description="Number of the last vote."),
        ] = None,
    ):
        self.since, self.until = (days.since, days.until) if day is None else (day, day)
        self.up_to: int | None = up_to


class VoteFilters:
    """What was voted on, by whom, when and how. `values` are those of the address and the form."""

    def __init__(
        self,
        on: Annotated[VotedOn, Depends()],
        when: Annotated[VotedWhen, Depends()],
        annotator_id: ChartFilter = None,
        comparison_id: ChartFilter = None,
        status: Annotated[VoteStatus | None, EMPTY, Query()] = None,
        flag: Annotated[Flag | None, EMPTY, Query()] = None,
        mark: Annotated[
            Mark | None,
            EMPTY,
            Query(
                description="Votes with this mark of `GET quality`. Combined only with "
                "annotator_id."
            ),
        ] = None,
    ):
        since, until = when.since, when.until
        self.mark: Mark | None = mark
        self.only = VoteFilter(
            annotator_id=annotator_id,
            comparison_id=comparison_id,
            first_day=since.isoformat() if since else None,
            last_day=until.isoformat() if until else None,
            up_to=when.up_to,
            status=status,
            flag=flag,
            category=on.category,
            source=on.source,
            words=on.q,
        )
        values = {
            "q": on.q,
            "annotator_id": annotator_id,
            "comparison_id": comparison_id,
            "since": since,
            "until": until,
            "up_to": when.up_to,
            "status": status,
            "flag": flag,
            "category": on.category,
            "source": on.source,
            "mark": mark,
        }
        self.values = {name: str(value or "") for name, value in values.items()}
