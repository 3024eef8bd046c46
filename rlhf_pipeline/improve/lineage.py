"""Traces a model to the votes and feedback that taught it, and these to the models they taught.

A vote taught a model if it counted when the model was trained (`feedback.votes.teaching`): for a
reward model among all votes, whatever their pair's split, for a policy among those on the
comparisons of its retraining set. The votes behind a policy's reward model are the latter's own.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime

import pandas as pd
from pydantic import Field

from rlhf_pipeline.core.artefacts import Artefacts
from rlhf_pipeline.core.curation import DatasetVersion, FeedbackQuery, NamedVersion
from rlhf_pipeline.core.errors import MissingPartition, NotFound
from rlhf_pipeline.core.records import AnnotatorKind, ModelVersion, Record, Vote
from rlhf_pipeline.feedback.votes.preference_pairs import PairParams, make_pairs
from rlhf_pipeline.feedback.votes.teaching import Quarantines, TeachingRule, teaching_votes
from rlhf_pipeline.store import Store

ORIGINS = {  # of rows of a retraining set, in words
    "vote": "labelled by votes",
    "relabelled": "relabelled by the reward model, because taste changed since the vote",
    "hard_negative": "hard negatives of the reward model",
    "dataset": "of a curated data set",
}
NOWHERE: frozenset[str] = frozenset()


class AnnotatorVotes(Record):
    """Votes of one annotator; `group` is None for one without."""

    annotator_id: str
    group: str | None
    n_votes: int


class ModelTrace(Record):
    """What a model was made of."""

    model: str
    kind: str
    created_at: datetime
    parent: str | None
    reward_model: str | None = Field(description="that labelled and judged; None if unknown")
    dataset: str | None = Field(description="curated data set, as name@version")
    data_hash: str | None
    rows: Mapping[str, int] | None = Field(
        description="of the retraining set, by origin; None where its file is not kept"
    )
    n_votes: int
    first_seq: int | None
    last_seq: int | None
    first_day: str | None
    last_day: str | None
    annotators: tuple[AnnotatorVotes, ...]
    feedback_ids: tuple[int, ...]
    comparison_ids: tuple[str, ...] | None = Field(description="of a policy")
    vote_seqs: tuple[int, ...] | None = Field(description="of a policy; a reward model has most")


class TaughtModel(Record):
    """A model that a vote taught; of a policy the hash of its retraining set, and its data set."""

    model: str
    retraining_set: str | None
    dataset: str | None


class VoteTrace(Record):
    """Where a vote went."""

    vote_id: str
    seq: int
    annotator_id: str
    comparison_id: str
    cast: str = Field(description="the choice")
    left_out: str | None = Field(description="why it does not teach now; None if it does")
    models: tuple[TaughtModel, ...]
    datasets: tuple[str, ...] = Field(description="versions with its comparison")


class AnnotatorTrace(Record):
    """Whom an annotator taught."""

    annotator_id: str
    group: str | None
    n_votes: int
    n_teaching: int = Field(description="of them now")
    models: Mapping[str, int] = Field(description="number of votes by model that they taught")


class FeedbackTrace(Record):
    """Where an entry of feedback went."""

    feedback_id: int
    kind: str
    comparison_id: str | None
    vote_id: str | None
    datasets: tuple[str, ...]
    models: tuple[str, ...]


class LineageReader:
    """Traces of one project; `models` are the versions of its registry, which do not change
    meanwhile.
    """

    def __init__(self, store: Store, files: Artefacts, models: Sequence[ModelVersion]):
        self._store, self._files, self._models = store, files, models
        self._fires = store.decisions.fires()
        self._groups = store.annotator_groups.all()
        self._sets: dict[str, frozenset[str]] = {}

    def trace_model(self, model: ModelVersion) -> ModelTrace:
        """The votes and feedback of a policy whose retraining set is not kept are unknown: none."""
        seq, quarantines = self._find_cutoff(model)
        sources = self._find_sources(model)
        ids = _of_kind(sources, "comparison")
        is_policy = model.kind == "policy"
        if is_policy:
            log = self._store.votes.log(comparison_ids=ids, up_to_seq=seq)
            votes = self._select_taught(model, log, self._read_comparisons(log))
            by_annotator: Mapping[str, int] = Counter(votes["annotator_id"])
            seqs, days = votes["seq"].tolist(), sorted(votes["day"])
            ends = [values[i] if values else None for values in (seqs, days) for i in (0, -1)]
        else:
            by_annotator, *ends = self._store.lineage.sum_teaching(seq, quarantines.since)
        first_seq, last_seq, first_day, last_day = ends
        corrections = self._store.lineage.corrections(seq, quarantines.since)
        feedback_ids = {
            correction.feedback_id
            for correction in corrections
            if not is_policy or f"comparison:{correction.comparison_id}" in sources
        }
        return ModelTrace(
            model=model.label,
            kind=model.kind,
            created_at=model.created_at,
            parent=model.parent,
            reward_model=self._find_reward_model(model),
            dataset=model.params.get("dataset"),
            data_hash=model.data_hash,
            rows=self._count_rows(model) if is_policy else None,
            n_votes=sum(by_annotator.values()),
            first_seq=first_seq,
            last_seq=last_seq,
            first_day=first_day,
            last_day=last_day,
            annotators=tuple(
                AnnotatorVotes(annotator_id=who, group=self._groups.get(who), n_votes=n)
                for who, n in sorted(by_annotator.items(), key=lambda item: (-item[1], item[0]))
            ),
            feedback_ids=tuple(sorted(feedback_ids | {*map(int, _of_kind(sources, "feedback"))})),
            comparison_ids=tuple(ids) if is_policy else None,
            vote_seqs=tuple(seqs) if is_policy else None,
        )

    def trace_vote(self, vote_id: str) -> VoteTrace:
        """Raises NotFound."""
        vote = self._store.votes.get(vote_id)
        return VoteTrace(
            **vote.model_dump(include={"vote_id", "seq", "annotator_id", "comparison_id"}),
            cast=vote.choice.value,
            left_out=self._explain(vote),
            models=tuple(
                TaughtModel(
                    model=model.label,
                    retraining_set=model.data_hash if model.kind == "policy" else None,
                    dataset=model.params.get("dataset"),
                )
                for model in self._find_taught(vote)
            ),
            datasets=_labels(self._store.datasets.versions_of(f"comparison:{vote.comparison_id}")),
        )

    def find_pair(self, comparison_id: str, params: PairParams) -> str | None:
        """The pair that the votes on a comparison make now, in words; None where they make none."""
        log = self._store.votes.log(comparison_ids=[comparison_id])
        rule = self._find_rule(log, Quarantines.from_decisions(self._fires))
        pairs, _ = make_pairs(log, self._read_comparisons(log), params, rule)
        for pair in pairs.itertuples():
            return f"{pair.chosen_side} preferred, agreement {pair.agreement:.0%}, {pair.split}"
        return None

    def trace_annotator(self, annotator_id: str) -> AnnotatorTrace:
        """Raises NotFound for an annotator without a vote."""
        log = self._store.votes.log(annotator_id=annotator_id)
        if log.empty:
            raise NotFound(f"{annotator_id!r} cast no vote. Correct the id.")
        comparisons = self._read_comparisons(log)
        rule = self._find_rule(log, Quarantines.from_decisions(self._fires))
        counts = {
            model.label: len(self._select_taught(model, log, comparisons)) for model in self._models
        }
        return AnnotatorTrace(
            annotator_id=annotator_id,
            group=self._groups.get(annotator_id),
            n_votes=len(log),
            n_teaching=len(teaching_votes(log, comparisons, rule).votes),
            models={label: n for label, n in counts.items() if n},
        )

    def trace_feedback(self, feedback_id: int) -> FeedbackTrace:
        """Raises NotFound."""
        entries = self._store.feedback.select(FeedbackQuery(feedback_ids=(feedback_id,)))
        if not entries:
            raise NotFound(f"There is no feedback {feedback_id}. Page *Feedback* shows the ids.")
        entry, source = entries[0], f"feedback:{feedback_id}"
        sources, taught = [source], set[str]()
        if entry.vote_id is not None:
            vote = self._store.votes.get(entry.vote_id)
            taught = {model.label for model in self._find_taught(vote)}
            sources.append(f"comparison:{vote.comparison_id}")
        return FeedbackTrace(
            **entry.model_dump(include={"feedback_id", "kind", "comparison_id", "vote_id"}),
            datasets=_labels(self._store.datasets.versions_of(*sources)),
            models=tuple(
                model.label
                for model in self._models
                if model.label in taught or source in self._find_sources(model)
            ),
        )

    def _find_taught(self, vote: Vote) -> list[ModelVersion]:
        """The models that a vote taught."""
        return [model for model in self._models if self._has_taught(model, vote)]

    def _has_taught(self, model: ModelVersion, vote: Vote) -> bool:
        source = f"comparison:{vote.comparison_id}"
        if model.kind == "policy" and source not in self._find_sources(model):
            return False
        seq, quarantines = self._find_cutoff(model)
        return self._store.lineage.judge(vote.seq, seq, quarantines.since).teaches

    def _explain(self, vote: Vote) -> str | None:
        """The first rule by which a vote does not teach now; None if it does."""
        since = Quarantines.from_decisions(self._fires).since
        standing = self._store.lineage.judge(vote.seq, self._store.votes.max_seq(), since)
        if standing.teaches:
            return None
        if vote.seq >= since.get(vote.annotator_id, vote.seq + 1):
            return f"a quarantine of {vote.annotator_id} leaves it out"
        if not standing.counts:
            return "a later vote of the annotator stands in its place"
        decided = self._store.adjudications.standing([vote.comparison_id]).get(vote.comparison_id)
        if decided is not None and decided.choice != vote.choice:
            return f"an expert decided for {decided.choice}"
        if vote.annotator_kind == AnnotatorKind.MACHINE:
            return "a machine cast it"
        return "its comparison repeats another or is flagged"

    def _select_taught(
        self, model: ModelVersion, log: pd.DataFrame, comparisons: pd.DataFrame
    ) -> pd.DataFrame:
        """The VOTES of a log that taught a model. The log has all votes of an annotator on a
        comparison or none.
        """
        if model.kind == "policy":
            log = log[("comparison:" + log["comparison_id"]).isin(self._find_sources(model))]
        if log.empty:
            return log
        seq, quarantines = self._find_cutoff(model)
        early = log[log["seq"] <= seq]
        rule = self._find_rule(early, quarantines, seq)
        return teaching_votes(early, comparisons, rule).votes

    def _find_rule(
        self, log: pd.DataFrame, quarantines: Quarantines, seq: int | None = None
    ) -> TeachingRule:
        ids = log["comparison_id"].unique().tolist()
        decided = self._store.adjudications.standing(ids, up_to_seq=seq)
        return TeachingRule(
            quarantines, {name: decision.choice for name, decision in decided.items()}
        )

    def _read_comparisons(self, log: pd.DataFrame) -> pd.DataFrame:
        return self._store.comparisons.with_ids(log["comparison_id"].unique().tolist())

    def _find_cutoff(self, model: ModelVersion) -> tuple[int, Quarantines]:
        """The newest vote that a model may have seen, and the quarantines of the time."""
        fires = [fire for fire in self._fires if fire.decided_at <= model.created_at]
        seq = model.data_seq
        if seq is None:
            seq = self._store.lineage.seq_at(model.created_at)
        if version := self._find_dataset(model):
            seq = min(seq, self._store.lineage.seq_at(version.frozen_at))
        return seq, Quarantines.from_decisions(fires)

    def _find_dataset(self, model: ModelVersion) -> DatasetVersion | None:
        """None also where this store has not the data set."""
        name, _, number = str(model.params.get("dataset") or "").rpartition("@")
        with suppress(NotFound):
            dataset = self._store.datasets.find(name)
            return self._store.datasets.version(dataset.dataset_id, int(number))
        return None

    def _find_sources(self, model: ModelVersion) -> frozenset[str]:
        """What the rows of a policy's retraining set were made from, such as `comparison:c1`; empty
        where its file is not kept. Hard negatives come from no comparison.
        """
        key = model.data_hash
        if model.kind != "policy" or key is None:
            return NOWHERE
        if key not in self._sets:
            try:
                frame = self._files.read_frame("retraining_set", key)
            except MissingPartition:
                return NOWHERE
            of_votes = frame["origin"].isin(["vote", "relabelled"])
            names = ("comparison:" + frame.loc[of_votes, "comparison_id"]).tolist()
            if version := self._find_dataset(model):
                rows = self._store.datasets.rows(version.content_hash)
                chosen = rows.loc[rows["row_id"].isin(frame["comparison_id"]), "sources"]
                names += [name for text in chosen for name in json.loads(text)]
            self._sets[key] = frozenset(names)
        return self._sets[key]

    def _count_rows(self, model: ModelVersion) -> Mapping[str, int] | None:
        try:
            counts = self._files.count_values("retraining_set", model.data_hash or "-", "origin")
        except MissingPartition:
            return None
        return {str(origin): n for origin, n in sorted(counts.items(), key=str)}

    def _find_reward_model(self, model: ModelVersion) -> str | None:
        """As recorded with a policy, or else that of its evaluation."""
        if model.kind != "policy":
            return None
        evaluations = (
            gate.evaluation.reward_model
            for gate in reversed(self._store.gates.all())
            if gate.candidate == model.label and gate.evaluation
        )
        return model.params.get("reward_model") or next(evaluations, None)


def _of_kind(sources: frozenset[str], kind: str) -> list[str]:
    """The ids of sources such as `comparison:c1`."""
    return sorted(name.partition(":")[2] for name in sources if name.startswith(f"{kind}:"))


def _labels(versions: Sequence[NamedVersion]) -> tuple[str, ...]:
    return tuple(version.label for version in versions)
