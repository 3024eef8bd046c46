"""What Dagster costs: the stages of a day and of a retraining as assets, against the same library calls in a plain script.

    python benchmarks/bench_loop.py [--prompts 120] [--runs 3]

Both sides run in this process, in turns, on days of one temporary project: Great Expectations checks, MLflow runs and
files in both. Limits: 0.8 s an asset, 15 % where the stages take a minute or more, definitions loaded within 2.5 s.
Reads the embedded policy from RLHF_HOME (default var/) where `rlhf init` has left one, else trains it first (a minute).
"""

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [] if str(ROOT) in sys.path else [str(ROOT)]

from rlhf_pipeline.config import Settings, silence_telemetry  # noqa: E402

silence_telemetry()

import pandas as pd  # noqa: E402

from rlhf_pipeline.artefacts import Artefacts  # noqa: E402
from rlhf_pipeline.calibration import CalibrationParams, calibrate, evidently_calibration_report, reliability_diagram  # noqa: E402
from rlhf_pipeline.champions import Champions, Judge, not_worse  # noqa: E402
from rlhf_pipeline.cli.context import Workspace  # noqa: E402
from rlhf_pipeline.cli.init import initialise  # noqa: E402
from rlhf_pipeline.comparisons import PairingParams, pair_completions  # noqa: E402
from rlhf_pipeline.completions import CompletionParams, complete_prompts  # noqa: E402
from rlhf_pipeline.drift.calibration_events import calibration_events  # noqa: E402
from rlhf_pipeline.drift.plots import drift_timeline  # noqa: E402
from rlhf_pipeline.drift.reference import current_window, reference_window  # noqa: E402
from rlhf_pipeline.drift.report import DriftParams, data_drift_report, drift_report  # noqa: E402
from rlhf_pipeline.drift.stream import scan  # noqa: E402
from rlhf_pipeline.evaluation import EvaluationParams, GateParams, evaluate, frozen_prompt_ids, frozen_prompts, gate  # noqa: E402
from rlhf_pipeline.evaluation.plots import loss_curve  # noqa: E402
from rlhf_pipeline.expectations import require, suite_for, validate  # noqa: E402
from rlhf_pipeline.frames import SCHEMAS, frame_hash  # noqa: E402
from rlhf_pipeline.prompts import PromptParams, generate  # noqa: E402
from rlhf_pipeline.records import Record, utc_now  # noqa: E402
from rlhf_pipeline.reflection import judged_predictions, predict, reflect  # noqa: E402
from rlhf_pipeline.registry import Registry, Run  # noqa: E402
from rlhf_pipeline.retraining.selection import SelectionParams, select, verify_retraining_set  # noqa: E402
from rlhf_pipeline.retraining.strategies import StrategyParams, train_candidate  # noqa: E402
from rlhf_pipeline.reward_model import RewardModelParams, fit_reward_model  # noqa: E402
from rlhf_pipeline.store import Store  # noqa: E402
from rlhf_pipeline.votes import PairParams, agreement, latest_pairs, noise_ceiling, preference_pairs  # noqa: E402

PROMPTS_TO_START = 250  # enough votes on the first day for a reward model and its calibration
SECONDS_PER_ASSET, SHARE, A_MINUTE, SECONDS_TO_LOAD = 0.8, 0.15, 60.0, 2.5
FIRST_DAY = date(2026, 1, 1)
JOBS = {
    "collection": ("prompts", "completions", "comparisons"),
    "feedback": ("votes", "preference_pairs", "reflection_log", "drift_report"),
    "retraining": ("reward_model", "calibration", "retraining_set", "candidate_model", "evaluation", "gate"),
}


@dataclass
class Timed:
    """Seconds by stage and by job of one pass over all stages."""

    stages: dict[str, float] = field(default_factory=dict)
    jobs: dict[str, float] = field(default_factory=dict)


@dataclass
class PlainScript:
    """The loop without an orchestrator: every stage one method, called one after the other."""

    settings: Settings
    store: Store
    registry: Registry
    champions: Champions
    files: Artefacts
    prompt_params: PromptParams
    timed: Timed = field(default_factory=Timed)

    @contextmanager
    def stage(self, name: str) -> Iterator[Run]:
        start = time.perf_counter()
        with self.registry.run(name, {"stage": name}, run_key=f"plain:{name}:{time.time_ns()}") as run:
            yield run
        self.timed.stages[name] = time.perf_counter() - start

    def keep(self, run: Run, name: str, value: pd.DataFrame | Record, metrics: dict[str, float], day: str | None = None) -> None:
        if isinstance(value, Record):
            self.files.write_record(name, value)
        else:
            require(validate(value, suite_for(SCHEMAS[name]), name))
            run.set_tags({"data_hash": frame_hash(value)})
            self.files.write_frame(name, value, day)
        run.log_metrics(metrics)

    def collection(self, day: str) -> None:
        with self.stage("prompts") as run:
            prompts = generate(self.prompt_params, day=day, exclude=frozen_prompt_ids(frozen_prompts()))
            self.keep(run, "prompts", prompts, {"n_prompts": len(prompts)}, day)
        with self.stage("completions") as run:
            backend = self.champions.backend(self.settings)
            completions = complete_prompts(prompts, backend, CompletionParams(), cache=self.store.completions_cache)
            self.keep(run, "completions", completions, {"n_completions": len(completions)}, day)
        with self.stage("comparisons") as run:
            before = [(date.fromisoformat(day) - timedelta(days=n)).isoformat() for n in (1, 2, 3)]
            earlier = self.store.comparisons.for_days(before)
            comparisons = pair_completions(prompts, completions, PairingParams(), day=day, earlier=earlier)
            judge = self.champions.judge()
            predictions = self._predicted(judge, comparisons) if judge else None
            self.store.comparisons.publish(comparisons, predictions, published_at=utc_now())
            self.keep(run, "comparisons", comparisons, {"n_comparisons": len(comparisons)}, day)

    def feedback(self, day: str) -> None:
        with self.stage("votes") as run:
            votes = self.store.votes.snapshot([day])
            agreement(votes)
            self.keep(run, "votes", votes, {"n_votes": len(votes)}, day)
        with self.stage("preference_pairs") as run:
            judged = votes["comparison_id"].unique().tolist()
            all_votes = self.store.votes.on(judged, up_to_seq=int(votes["seq"].max()))
            pairs = preference_pairs(all_votes, self.store.comparisons.with_ids(judged), PairParams()).assign(day=day)
            self.keep(run, "preference_pairs", pairs, {"n_pairs": len(pairs)}, day)
        with self.stage("reflection_log") as run:
            found = [self.store.predictions.for_days([day]), self.store.predictions.of(judged)]
            predictions = pd.concat(found).drop_duplicates(["comparison_id", "reward_model"])
            reflections = reflect(predictions, votes, strict=False)
            self.keep(run, "reflection_log", reflections, {"n_rows": len(reflections)}, day)
        with self.stage("drift_report") as run:
            report = self._drift_report(day, reflections, votes, run)
            self.keep(run, "drift_report", report, {"n_drift": int((report["verdict"] == "drift").sum())}, day)

    def _drift_report(self, day: str, reflections: pd.DataFrame, votes: pd.DataFrame, run: Run) -> pd.DataFrame:
        judged, params = reflections[reflections["is_error"].notna()], DriftParams()
        if judged.empty:
            return drift_report(day, model_version=None, reference=None, current=None, params=params)
        label = str(judged["reward_model"].mode().iloc[0])
        found = scan(self.store.detectors.errors_after(label), self.store.detectors.states(label), model_version=label, params=params)
        self.store.detectors.record_scan(found.events, label, found.states)
        mine = reflections[reflections["reward_model"] == label]
        judge, reference = self.champions.judge(self.champions.version(label)), self.champions.reference_window(label)
        texts = self.store.comparisons.with_ids(mine["comparison_id"].unique().tolist())
        current = current_window(mine, texts, model_version=label, embed=judge.embed if judge else None)
        tests = evidently_calibration_report(judged_predictions(mine))
        self.store.events.add(calibration_events(mine, list(tests.tests), model_version=label))
        events = self.store.events.for_model(label)
        report = drift_report(
            day, model_version=label, reference=reference, current=current, events=[*events], warnings=found.warnings,
            calibration_tests=list(tests.tests), last_seq=int(judged["seq"].max()), params=params,
        )  # fmt: skip
        run.log_text(json.dumps(tests.json), "calibration.json")
        if reference is not None:
            run.log_text(json.dumps(data_drift_report(reference, current, params).json), "data_drift.json")
        errors = self.store.detectors.errors_after(label)
        run.log_figure(
            drift_timeline(errors, events, found.warnings, noise_ceiling=noise_ceiling(votes), title=label), "drift_timeline.png"
        )
        return report

    def retraining(self, day: str) -> None:
        pairs = latest_pairs(self.files.read_days("preference_pairs", self.files.days("preference_pairs")))
        votes = self.files.read_days("votes", self.files.days("votes"))
        with self.stage("reward_model") as run, tempfile.TemporaryDirectory() as folder:
            champion = self.champions.judge()
            warm_start = champion.reward_model if champion else None
            fitted = fit_reward_model(pairs, RewardModelParams(), encoder=self.champions.encoder(), warm_start=warm_start)
            fitted.model.save(Path(folder) / "reward_model")
            version = self.registry.register(
                "reward_model", Path(folder) / "reward_model", run=run, data_hash=fitted.report.data_hash, data_seq=fitted.report.max_seq
            )
            self.registry.set_alias("reward_model", "candidate", version.version)
            run.log_figure(loss_curve(list(enumerate(fitted.report.loss_curve)), title=version.label), "loss_curve.png")
            self.keep(run, "reward_model", version, {"n_train": fitted.report.n_train})
        with self.stage("calibration") as run:
            judge = self.champions.judge(version)
            assert judge is not None
            calibrator, report = calibrate(
                pairs, judge.reward_model, CalibrationParams(), reward_model_label=version.label,
                data_hash=version.data_hash or "", noise_ceiling=noise_ceiling(votes),
            )  # fmt: skip
            number = self.store.calibrations.add(report, calibrator.to_json())
            judge = Judge(version, judge.reward_model, calibrator, f"{report.method}@{number}")
            calib, test = (pairs[pairs["split"] == split] for split in ("calib", "test"))
            window = reference_window(calib, judge.p_chosen(calib), model_version=version.label, embed=judge.embed)
            window.save(self.champions.reference_folder(version))
            run.log_folder(self.champions.reference_folder(version), "reference_window")
            rows = pd.DataFrame({"p": judge.p_chosen(test), "outcome": 1.0, "group": test["prompt_id"].to_numpy()})
            turned = (test["chosen_side"] == "b").to_numpy()
            rows.loc[turned, ["p", "outcome"]] = 1 - rows.loc[turned, ["p", "outcome"]]
            evidently = evidently_calibration_report(rows)
            run.log_text(evidently.html().decode(), "evidently.html")
            run.log_figure(reliability_diagram(report), "reliability_diagram.png")
            promoted, reason = not_worse(judge, self.champions.judge(), test)
            self.keep(run, "calibration", report, {"ece": report.calibrated.ece_equal_mass.value})
            if promoted:
                self.champions.promote("reward_model", version, reason=reason, actor="benchmark")
        frozen = frozen_prompts()
        with self.stage("retraining_set") as run:
            reflections = self.files.read_days("reflection_log", self.files.days("reflection_log"))
            scores = pd.DataFrame({"comparison_id": pairs["comparison_id"], "p_chosen": judge.p_chosen(pairs)})
            frame = select(pairs, scores, reflections, SelectionParams(), change_seq=None, frozen_prompt_ids=frozen_prompt_ids(frozen))
            assert not verify_retraining_set(frame, frozen_prompt_ids(frozen), SelectionParams().min_pairs)
            self.keep(run, "retraining_set", frame, {"n_pairs": len(frame)})
        with self.stage("candidate_model") as run:
            parent, out = self.champions.policy(), self.settings.models / "candidates" / "plain"
            trained = train_candidate("dpo", self.champions.policy_folder(parent), frame, out, StrategyParams())
            candidate = self.registry.register("policy", out / "model", run=run, parent=parent.label, data_hash=trained.data_hash)
            self.registry.set_alias("policy", "candidate", candidate.version)
            run.log_figure(loss_curve(trained.loss_curve, title=candidate.label), "loss_curve.png")
            self.keep(run, "candidate_model", candidate, {"n_steps": trained.n_steps})
        with self.stage("evaluation") as run:
            result, samples = evaluate(
                self.champions.load_policy(candidate), self.champions.load_policy(parent), frozen, judge.reward_model, EvaluationParams(),
                candidate_label=candidate.label, champion_label=parent.label, reward_model_label=version.label, calibrator=judge.calibrator,
            )  # fmt: skip
            run.log_text(samples.to_json(orient="records", lines=True), "samples.jsonl")
            self.keep(run, "evaluation", result, {"win_rate": result.win_rate.value})
        with self.stage("gate") as run:
            decision = gate(result, GateParams())
            self.keep(run, "gate", decision, {"promoted": float(decision.promoted)})
            self.store.gates.record(decision)

    def _predicted(self, judge: Judge, comparisons: pd.DataFrame) -> pd.DataFrame:
        return predict(
            comparisons, judge.reward_model, judge.calibrator, reward_model_label=judge.label,
            calibrator_version=judge.calibrator_version, data_hash=judge.version.data_hash or "", predicted_at=utc_now(),
        )  # fmt: skip


class Bench:
    """One temporary project; `dagster` and `plain` each work on a day of their own."""

    def __init__(self, home: Path, n_prompts: int) -> None:
        import dagster as dg

        from definitions import definitions_for
        from resources import resources_for

        self.settings = Settings(home=home, annotators="simulated", scenario="steady")
        self.workspace = Workspace(self.settings)
        initialise(self.workspace)
        self.annotators = resources_for(self.settings)["annotators"]
        self.defs = definitions_for(self.settings)
        self.instance = dg.DagsterInstance.get()
        self.prompt_params = PromptParams(n=n_prompts)
        self.n_days = 0

    def next_day(self) -> str:
        self.n_days += 1
        return (FIRST_DAY + timedelta(days=self.n_days - 1)).isoformat()

    def vote(self, day: str) -> None:
        """Not measured: it is neither an asset nor orchestrated by one."""
        files, store = self.workspace.files, self.workspace.store
        prompts = files.read_days("prompts", files.days("prompts"))
        references = {p: None if pd.isna(r) else r for p, r in zip(prompts["prompt_id"], prompts["reference"], strict=True)}
        store.votes.cast_many(self.annotators(store.comparisons.for_days([day]), references, day))

    def dagster(self) -> Timed:
        day, timed = self.next_day(), Timed()
        for job in JOBS:
            self._clear_candidates()
            timed.jobs[job] = self._run(job, day, timed)
            if job == "collection":
                self.vote(day)
        return timed

    def plain(self) -> Timed:
        w, day = self.workspace, self.next_day()
        script = PlainScript(self.settings, w.store, w.registry, w.champions, w.files, self.prompt_params)
        for job in JOBS:
            self._clear_candidates()
            start = time.perf_counter()
            getattr(script, job)(day)
            script.timed.jobs[job] = time.perf_counter() - start
            if job == "collection":
                self.vote(day)
        return script.timed

    def _run(self, job: str, day: str, timed: Timed) -> float:
        start = time.perf_counter()
        config: dict[str, Any] = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        if job == "collection":
            config["ops"] = {"prompts": {"config": {"n": self.prompt_params.n}}}
        partition = {} if job == "retraining" else {"partition_key": day}
        result = self.defs.resolve_job_def(job).execute_in_process(instance=self.instance, run_config=config, **partition)
        seconds = time.perf_counter() - start
        for event in result.all_events:
            if event.event_type_value == "STEP_SUCCESS":
                timed.stages[event.step_key] = event.step_success_data.duration_ms / 1000
        return seconds

    def _clear_candidates(self) -> None:
        """A finished training of the same data is not repeated: both sides must train."""
        shutil.rmtree(self.settings.models / "candidates", ignore_errors=True)


def report(dagster: list[Timed], plain: list[Timed]) -> None:
    print(f"\nMedians of {len(plain)} runs each, in turns, in seconds\n\n| asset | plain | Dagster | overhead | % |\n|---|---|---|---|---|")
    n_assets, total_plain, total_dagster = 0, 0.0, 0.0
    for job, stages in JOBS.items():
        steps = 0.0
        for stage in stages:
            one, two = (median(t.stages[stage] for t in side) for side in (plain, dagster))
            steps += two - one
            print(f"| {stage} | {one:.2f} | {two:.2f} | {two - one:+.2f} | {(two - one) / one:+.0%} |")
        one, two = (median(t.jobs[job] for t in side) for side in (plain, dagster))
        print(
            f"| _job {job}_ | {one:.2f} | {two:.2f} | {two - one:+.2f}, of it {two - one - steps:.2f} around the steps | {(two - one) / one:+.0%} |"
        )
        n_assets, total_plain, total_dagster = n_assets + len(stages), total_plain + one, total_dagster + two
    overhead = total_dagster - total_plain
    each = overhead / n_assets
    print(
        f"| **all {n_assets}** | {total_plain:.2f} | {total_dagster:.2f} | {overhead:+.2f} = {each:.2f} an asset | {overhead / total_plain:+.0%} |\n"
    )
    verdict(each <= SECONDS_PER_ASSET, f"{each:.2f} s an asset, limit {SECONDS_PER_ASSET} s")
    if total_plain >= A_MINUTE:
        verdict(overhead / total_plain <= SHARE, f"{overhead / total_plain:.1%} of {total_plain:.0f} s, limit {SHARE:.0%}")
    else:
        print(f"----  the stages take {total_plain:.0f} s, less than a minute: the share is not judged; raise --prompts")


def verdict(passed: bool, text: str) -> None:
    print(f"{'PASS' if passed else 'FAIL'}  {text}")


def load_seconds() -> float:
    """Median of three fresh processes that import the definitions."""
    found = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import definitions"], cwd=ROOT, check=True)
        found.append(time.perf_counter() - start)
    return median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=120, help="prompts a day; more makes the stages longer")
    parser.add_argument("--runs", type=int, default=3, help="measured runs of each side, after one of each to warm up")
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("dagster").setLevel(logging.CRITICAL)
    loaded = load_seconds()
    trained = Settings.read(folder=ROOT).cache / "embedded_policy"
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        if trained.exists():
            shutil.copytree(trained, home / "cache" / "embedded_policy")
        os.environ["DAGSTER_HOME"] = str(home / "dagster")
        (home / "dagster").mkdir(parents=True)
        bench = Bench(home, given.prompts)
        sides: tuple[list[Timed], list[Timed]] = ([], [])
        for n in range(given.runs + 1):
            bench.prompt_params = PromptParams(n=given.prompts if n else max(given.prompts, PROMPTS_TO_START))
            first, second = (bench.dagster, bench.plain) if n % 2 else (bench.plain, bench.dagster)  # data grows by the day
            both = {run.__name__: run() for run in (first, second)}
            seconds = ", ".join(f"{name} {sum(timed.jobs.values()):.1f} s" for name, timed in both.items())
            print(f"{f'run {n}' if n else 'warm-up'}: {seconds}", flush=True)
            if n:
                sides[0].append(both["dagster"])
                sides[1].append(both["plain"])
        report(*sides)
        bench.instance.dispose()
    verdict(loaded <= SECONDS_TO_LOAD, f"definitions load in {loaded:.2f} s, limit {SECONDS_TO_LOAD} s (fresh process, median of 3)")


if __name__ == "__main__":
    main()
