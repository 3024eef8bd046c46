"""The loop without an orchestrator: every stage's library calls one after the other, with checks,
MLflow runs and files.

What bench_loop.py sets beside the same stages as Dagster assets.
"""

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

import pandas as pd

from rlhf_pipeline.artefacts import Artefacts
from rlhf_pipeline.calibration import (
    CalibrationParams,
    PredictedVotes,
    VoteFacts,
    calibrate,
    calibration_by_group,
    evidently_calibration_report,
    voted_rows,
)
from rlhf_pipeline.champions import Champions, Judge, assess
from rlhf_pipeline.comparisons import PairingParams, pair_completions
from rlhf_pipeline.completions import CompletionParams
from rlhf_pipeline.completions import generate as complete_prompts
from rlhf_pipeline.config import Settings
from rlhf_pipeline.drift.calibration_events import calibration_events
from rlhf_pipeline.drift.clusters import semantic_clusters
from rlhf_pipeline.drift.mixes import count_mixes
from rlhf_pipeline.drift.reference import Window, current_window, reference_window
from rlhf_pipeline.drift.report import DriftParams, DriftSignals, data_drift_report, drift_report
from rlhf_pipeline.drift.slices import error_slices
from rlhf_pipeline.drift.stream import scan
from rlhf_pipeline.errors import NotEnoughData
from rlhf_pipeline.evaluation import (
    CompletionJudge,
    EvaluationParams,
    GateParams,
    JudgedPolicy,
    decide_promotion,
    evaluate,
    frozen_prompt_ids,
    frozen_prompts,
)
from rlhf_pipeline.expectations import build_suite, require, validate
from rlhf_pipeline.frames import SCHEMAS, frame_hash
from rlhf_pipeline.prompts import PromptParams, generate
from rlhf_pipeline.records import DayClusters, Evaluation, ModelVersion, Record, utc_now
from rlhf_pipeline.reflection import judged_predictions, predict, reflect
from rlhf_pipeline.registry import Registry, Run, opening_recorder
from rlhf_pipeline.reports.annotators import chart_annotators
from rlhf_pipeline.reports.calibration import draw_calibration
from rlhf_pipeline.reports.draw import draw_png
from rlhf_pipeline.reports.drift import chart_timeline
from rlhf_pipeline.reports.drift_page import DayEvidence, render_drift_page
from rlhf_pipeline.reports.training import chart_loss
from rlhf_pipeline.retraining.parameters import StrategyParams
from rlhf_pipeline.retraining.selection import SelectionParams, find_set_problems, select_pairs
from rlhf_pipeline.retraining.strategies import train_candidate
from rlhf_pipeline.reward_model import LearningData, fit_reward_model, reward_model_params
from rlhf_pipeline.store import Store
from rlhf_pipeline.votes import (
    PairParams,
    agreement,
    fit_annotator_model,
    judged_comparison_ids,
    open_test_split,
    preference_pairs,
)
from rlhf_pipeline.votes.counting import standing


@dataclass
class LoopTimes:
    """Seconds by stage and by job of one pass over the jobs, and their seconds of CPU."""

    stages: dict[str, float] = field(default_factory=dict)
    jobs: dict[str, float] = field(default_factory=dict)
    cpu: float = 0.0

    @contextmanager
    def time_job(self, name: str) -> Iterator[None]:
        start, cpu = time.perf_counter(), time.process_time()
        yield
        self.jobs[name] = time.perf_counter() - start
        self.cpu += time.process_time() - cpu


@dataclass
class PlainScript:
    """The loop without an orchestrator: every stage one method, called one after the other."""

    settings: Settings
    store: Store
    registry: Registry
    champions: Champions
    files: Artefacts
    prompt_params: PromptParams
    timed: LoopTimes = field(default_factory=LoopTimes)

    @contextmanager
    def time_stage(self, name: str) -> Iterator[Run]:
        start = time.perf_counter()
        with self.registry.run(
            name, {"stage": name}, run_key=f"plain:{name}:{time.time_ns()}"
        ) as run:
            yield run
        self.timed.stages[name] = time.perf_counter() - start

    def deliver(
        self,
        run: Run,
        name: str,
        value: pd.DataFrame | Record,
        metrics: dict[str, float],
        day: str | None = None,
    ) -> None:
        if isinstance(value, Record):
            self.files.write_record(name, value)
        else:
            require(validate(value, build_suite(SCHEMAS[name]), name))
            run.set_tags({"data_hash": frame_hash(value)})
            self.files.write_frame(name, value, day)
        run.log_metrics(metrics)

    def run_collection(self, day: str) -> None:
        with self.time_stage("prompts") as run:
            prompts = generate(
                self.prompt_params, day=day, exclude=frozen_prompt_ids(frozen_prompts())
            )
            self.deliver(run, "prompts", prompts, {"n_prompts": len(prompts)}, day)
        with self.time_stage("completions") as run:
            backend = self.champions.backend(self.settings)
            completions = complete_prompts(
                prompts, [backend], CompletionParams(), ledger=self.store.generation
            ).frame
            self.deliver(run, "completions", completions, {"n_completions": len(completions)}, day)
        with self.time_stage("comparisons") as run:
            before = [(date.fromisoformat(day) - timedelta(days=n)).isoformat() for n in (1, 2, 3)]
            earlier = self.store.comparisons.for_days(before)
            comparisons = pair_completions(
                prompts, completions, PairingParams(), day=day, earlier=earlier
            )
            judge = self.champions.judge()
            predictions = self._predict(judge, comparisons) if judge else None
            self.store.comparisons.publish(comparisons, predictions, published_at=utc_now())
            self.deliver(run, "comparisons", comparisons, {"n_comparisons": len(comparisons)}, day)

    def run_feedback(self, day: str) -> None:
        with self.time_stage("votes") as run:
            votes = self.store.votes.log([day])
            agreement(votes)
            self.deliver(run, "votes", votes, {"n_votes": len(votes)}, day)
        with self.time_stage("reflection_log") as run:
            judged = votes["comparison_id"].unique().tolist()
            found = [
                self.store.predictions.for_days([day]),
                self.store.predictions.for_comparisons(judged),
            ]
            predictions = pd.concat(found).drop_duplicates(["comparison_id", "reward_model"])
            reflections = reflect(predictions, standing(votes), strict=False)
            self.deliver(run, "reflection_log", reflections, {"n_rows": len(reflections)}, day)
        with self.time_stage("drift_report") as run:
            report = self._make_drift_report(day, reflections, votes, run)
            self.deliver(
                run,
                "drift_report",
                report,
                {"n_drift": int((report["verdict"] == "drift").sum())},
                day,
            )

    def _make_drift_report(
        self, day: str, reflections: pd.DataFrame, votes: pd.DataFrame, run: Run
    ) -> pd.DataFrame:
        judged, params = reflections[reflections["is_error"].notna()], DriftParams()
        if judged.empty:
            return drift_report(day, params=params)
        label = str(judged["reward_model"].mode().iloc[0])
        found = scan(
            self.store.detectors.errors_after(label),
            self.store.detectors.states(label),
            model_version=label,
            params=params,
        )
        self.store.detectors.record_scan(found.events, label, found.states)
        mine = reflections[reflections["reward_model"] == label]
        judge = self.champions.judge(self.champions.version(label))
        reference = self.champions.reference_window(label)
        texts = self.store.comparisons.with_ids(mine["comparison_id"].unique().tolist())
        current = current_window(
            mine, texts, model_version=label, embed=judge.reward_model.features if judge else None
        )
        judgements = judged_predictions(mine)
        facts = VoteFacts.of(votes, texts)
        ceiling = facts.noise_ceiling
        by_group = calibration_by_group(
            PredictedVotes.of_day(judgements), facts.groups, ceilings=facts.group_ceilings
        )
        tests = evidently_calibration_report(judgements, noise_ceiling=ceiling, by_group=by_group)
        self.store.events.add(calibration_events(mine, list(tests.tests), model_version=label))
        events = self.store.events.for_model(label)
        report = drift_report(
            day,
            model_version=label,
            reference=reference,
            current=current,
            signals=DriftSignals(
                events, found.warnings, list(tests.tests), int(judged["seq"].max())
            ),
            params=params,
        )
        run.log_text(json.dumps(tests.json), "calibration.json")
        data_drift = (
            data_drift_report(reference, current, params).json if reference is not None else {}
        )
        run.log_text(json.dumps(data_drift), "data_drift.json")
        errors = self.store.detectors.errors_after(label)
        run.log_figure(
            draw_png(
                chart_timeline(errors, events, found.warnings, noise_ceiling=ceiling, title=label)
            ),
            "drift_timeline.png",
        )
        shown = DayEvidence(
            project=self.registry.project,
            day=day,
            report=report,
            reference=reference,
            current=current,
            judged=judgements,
            errors=errors,
            events=[*events],
            warnings=[*found.warnings],
            noise_ceiling=ceiling,
            by_group=by_group,
            clusters=_find_clusters(reference, current, params),
            slices=error_slices(mine, texts, params),
            texts=self._load_texts,
            data_drift=data_drift,
        )
        run.log_text(render_drift_page(shown, params), f"drift_report_{day}.html")
        return report

    def _load_texts(self, ids: Sequence[str]) -> dict[str, tuple[str, str]]:
        return {
            row.comparison_id: (row.prompt, row.completion_a)
            for row in self.store.comparisons.with_ids(ids).itertuples()
        }

    def run_retraining(self, day: str) -> None:
        votes = self.files.read_days("votes", self.files.days("votes"))
        with self.time_stage("preference_pairs") as run:
            judged = self.store.comparisons.with_ids(votes["comparison_id"].unique().tolist())
            pairs = preference_pairs(votes, judged, PairParams())
            self.deliver(run, "preference_pairs", pairs, {"n_pairs": len(pairs)})
        with self.time_stage("annotator_model") as run:
            learnt = fit_annotator_model(
                votes, self.store.comparisons.with_ids(judged_comparison_ids(votes))
            )
            run.log_figure(draw_png(chart_annotators(learnt.figures)), "annotators.png")
            run.log_text(learnt.figures.to_csv(index=False), "annotators.csv")
            run.log_text(learnt.report().model_dump_json(indent=1), "annotator_model.json")
            run.log_text(learnt.kappas.to_csv(index=False), "pairwise_kappa.csv")
            self.deliver(
                run, "annotator_model", learnt.labels, {"n_annotators": len(learnt.figures)}
            )
        with self.time_stage("reward_model") as run, tempfile.TemporaryDirectory() as folder:
            champion = self.champions.judge()
            warm_start = champion.reward_model if champion else None
            fitted = fit_reward_model(
                LearningData(pairs),
                reward_model_params(),
                encoder=self.champions.encoder(),
                warm_start=warm_start,
                record=opening_recorder(self.registry),
            )
            fitted.model.save(Path(folder) / "reward_model")
            version = self.registry.register(
                "reward_model",
                Path(folder) / "reward_model",
                run=run,
                data_hash=fitted.report.data_hash,
                data_seq=fitted.report.max_seq,
            )
            self.registry.set_alias("reward_model", "candidate", version.version)
            run.log_figure(
                draw_png(
                    chart_loss(list(enumerate(fitted.report.loss_curve)), title=version.label)
                ),
                "loss_curve.png",
            )
            self.deliver(run, "reward_model", version, {"n_train": fitted.report.n_train})
        with self.time_stage("calibration") as run:
            judge = self.champions.judge(version)
            assert judge is not None
            voted = self.store.comparisons.with_ids(pairs["comparison_id"].tolist())
            calibrator, report = calibrate(
                pairs,
                judge.reward_model,
                CalibrationParams(),
                reward_model_label=version.label,
                data_hash=version.data_hash or "",
                votes=VoteFacts.of(votes, voted),
                record=opening_recorder(self.registry),
            )
            number = self.store.calibrations.add(report, calibrator.to_json())
            judge = Judge(version, judge.reward_model, calibrator, f"{report.method}@{number}")
            calib = pairs[pairs["split"] == "calib"]
            test = open_test_split(
                pairs,
                model=version.label,
                purpose="Evidently's calibration report",
                record=opening_recorder(self.registry),
            )
            scores = judge.score_pairs(calib)
            of_votes = self.store.comparisons.with_ids(votes["comparison_id"].unique().tolist())
            window = reference_window(
                calib,
                judge.p_of_scores(*scores),
                model_version=version.label,
                embed=judge.reward_model.features,
                scores=scores,
                mixes=count_mixes(standing(votes), of_votes),
            )
            window.save(self.champions.reference_folder(version))
            run.log_folder(self.champions.reference_folder(version), "reference_window")
            evidently = evidently_calibration_report(
                voted_rows(test, judge.p_chosen(test)),
                noise_ceiling=report.noise_ceiling,
                by_group=report.by_group,
            )
            run.log_text(evidently.html().decode(), "evidently.html")
            for name, png in draw_calibration(report).items():
                run.log_figure(png, f"{name}.png")
            verdict = assess(judge, self.champions.judge(), calib, ceiling=report.noise_ceiling)
            self.deliver(
                run, "calibration", report, {"ece": report.calibrated.ece_equal_mass.value}
            )
            if verdict.is_accepted:
                self.champions.promote(
                    "reward_model", version, reason=verdict.reason, actor="benchmark"
                )
        frozen = frozen_prompts()
        with self.time_stage("retraining_set") as run:
            reflections = self.files.read_days("reflection_log", self.files.days("reflection_log"))
            scores = pd.DataFrame(
                {"comparison_id": pairs["comparison_id"], "p_chosen": judge.p_chosen(pairs)}
            )
            frame = select_pairs(
                pairs,
                scores,
                reflections,
                SelectionParams(),
                frozen_prompt_ids=frozen_prompt_ids(frozen),
            )
            assert not find_set_problems(
                frame, frozen_prompt_ids(frozen), SelectionParams().min_pairs
            )
            self.deliver(run, "retraining_set", frame, {"n_pairs": len(frame)})
        with self.time_stage("candidate_model") as run:
            parent, out = self.champions.policy(), self.settings.models / "candidates" / "plain"
            trained = train_candidate(
                "dpo", self.champions.policy_folder(parent), frame, out, StrategyParams()
            )
            candidate = self.registry.register(
                "policy", out / "model", run=run, parent=parent.label, data_hash=trained.data_hash
            )
            self.registry.set_alias("policy", "candidate", candidate.version)
            run.log_figure(
                draw_png(chart_loss(trained.loss_curve, title=candidate.label)), "loss_curve.png"
            )
            self.deliver(run, "candidate_model", candidate, {"n_steps": trained.n_steps})
        with self.time_stage("evaluation") as run:
            result, samples = self._evaluate(candidate, parent, judge)
            base = self.registry.get("policy", 1) or parent
            from_base = (
                result if base.label == parent.label else self._evaluate(candidate, base, judge)[0]
            )
            result = result.model_copy(
                update={"base": base.label, "win_rate_against_base": from_base.win_rate}
            )
            run.log_text(samples.to_json(orient="records", lines=True), "samples.jsonl")
            self.deliver(run, "evaluation", result, {"win_rate": result.win_rate.value})
        with self.time_stage("gate") as run:
            decision = decide_promotion(result, GateParams())
            self.deliver(run, "gate", decision, {"promoted": float(decision.promoted)})
            self.store.gates.record(decision)

    def _evaluate(
        self, candidate: ModelVersion, other: ModelVersion, judge: Judge
    ) -> tuple[Evaluation, pd.DataFrame]:
        return evaluate(
            JudgedPolicy(self.champions.load_policy(candidate), candidate.label),
            JudgedPolicy(self.champions.load_policy(other), other.label),
            frozen_prompts(),
            CompletionJudge(judge.reward_model, judge.label, judge.calibrator),
            EvaluationParams(),
            ledger=self.store.generation,
        )

    def _predict(self, judge: Judge, comparisons: pd.DataFrame) -> pd.DataFrame:
        return predict(
            comparisons,
            judge.reward_model,
            judge.calibrator,
            reward_model_label=judge.label,
            calibrator_version=judge.calibrator_version,
            data_hash=judge.version.data_hash or "",
            predicted_at=utc_now(),
        )


def _find_clusters(
    reference: Window | None, current: Window, params: DriftParams
) -> DayClusters | str:
    try:
        return semantic_clusters(reference, current, params)
    except NotEnoughData as few:
        return str(few)
