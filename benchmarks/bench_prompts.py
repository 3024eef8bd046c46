"""Prompts: quotas, measured difficulty, constraints, a batch with bad rows, evolution,
near-duplicates, memory. Prints tables.

    python benchmarks/bench_prompts.py [--doubts] [--large 100000]

Difficulty is measured thrice, by nothing that knows a prompt's level. Judged: what the text asks
for, counted (`fitness.demands`), the offline judge; its rules and the library have one author, so
it says that levels differ in what is asked, not that a model finds them hard. Learnt: the errors of
a nearest-neighbor student that saw 40 examples of a template and level, on others of them,
checkable templates alone. Doubted (`--doubts`, about two minutes): the disagreement of eight
reward-model heads, fitted on right against wrong answers, on others, and how near their mean is to
a tie. The first keeps the limit of a rank correlation above 0.5, the second only where the answer
is computed, the third does not: on the offline encoder the heads are hardly better than chance, and
so as unsure of an easy prompt as of a hard one. `--doubts` therefore ends with a broken limit.
Memory is that of processes of their own: interpreter, libraries, prompts as a frame and as a file.
"""

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

from benchmarks.measurement import Limits, print_table  # noqa: E402
from rlhf_pipeline.frames import PREFERENCE_PAIRS, check_frame  # noqa: E402
from rlhf_pipeline.prompts import Report, generate, generate_with  # noqa: E402
from rlhf_pipeline.prompts.base import Draft  # noqa: E402
from rlhf_pipeline.prompts.constraints import Constraints  # noqa: E402
from rlhf_pipeline.prompts.evolution import EvolutionGenerator  # noqa: E402
from rlhf_pipeline.prompts.fitness import demands  # noqa: E402
from rlhf_pipeline.prompts.near_duplicates import NearDuplicates, jaccard, shingles  # noqa: E402
from rlhf_pipeline.prompts.parameters import SourceParams  # noqa: E402
from rlhf_pipeline.prompts.templates import load_shipped_templates  # noqa: E402
from rlhf_pipeline.records import Category, Difficulty  # noqa: E402

DAY = "2026-01-01"
EACH = dict.fromkeys(Difficulty, 1.0)
LEVEL = {level: rank for rank, level in enumerate(Difficulty)}
SMALL = 1_000
RHO = 0.5
RSS_TIMES = 1.3
RSS_PLUS_MB = 100.0
STUDENT_SEES, STUDENT_ASKED = 40, 40
RULES = {
    "length": {"min_chars": 60, "max_chars": 160},
    "must": {"must": ["Ada"]},
    "must not": {"must_not": ["the", "which"]},
    "language": {"language": "en"},
    "all": {
        "min_chars": 40,
        "max_chars": 200,
        "must": ["Ada"],
        "must_not": ["which"],
        "language": "en",
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--doubts", action="store_true", help="measure difficulty by a reward model's doubts too"
    )
    parser.add_argument("--large", type=int, default=100_000, help="prompts of the memory table")
    # what a process of the memory table does, and of which rows
    parser.add_argument("--make", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make:
        sys.exit(make(arguments.make, arguments.rows))
    limits = Limits()
    quotas(limits)
    difficulty(limits, doubted=arguments.doubts)
    constraints(limits)
    batch(limits)
    evolution(limits)
    near_duplicates(limits)
    memory(limits, arguments.large)
    return limits.print_summary()


def quotas(limits: Limits) -> None:
    """Odd shares of every category and level, from every source that needs no key."""
    shares = {c: 1.0 + rank for rank, c in enumerate(Category)}
    levels = {"easy": 0.5, "medium": 0.3, "hard": 0.2}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        drafts = (f"{c} {d} number {i}" for i in range(400) for c in Category for d in Difficulty)
        file.write_text(
            "".join(
                json.dumps({"text": t, "category": t.split()[0], "difficulty": t.split()[1]}) + "\n"
                for t in drafts
            )
        )
        for source, n, path in (
            ("templates", 1_777, None),
            ("dataset", 1_777, file),
            ("evolution", 333, None),
        ):
            params = SourceParams(
                n=n, source=source, library="wide", categories=shares, difficulties=levels
            )
            started = time.process_time()
            counts = (
                generate(params, day=DAY, source_file=path)
                .groupby(["category", "difficulty"])
                .size()
            )
            asked = expected(n, shares, levels)
            off = sum(abs(int(counts.get(cell, 0)) - m) for cell, m in asked.items())
            rows.append([source, f"{n:,}", len(asked), off, f"{time.process_time() - started:.2f}"])
            limits.check(
                off == 0, f"{source}: prompts off their quotas of 18 cells: {off} of {n:,}, limit 0"
            )
    print_table(
        "Quotas of 6 categories x 3 levels", ["source", "prompts", "cells", "off", "CPU s"], rows
    )


def expected(
    n: int, shares: dict[Category, float], levels: dict[str, float]
) -> dict[tuple[str, str], int]:
    """Largest remainders, computed here again."""

    def split(total: int, by: dict[str, float]) -> dict[str, int]:
        whole = sum(by.values())
        found = {name: int(total * share / whole) for name, share in by.items()}
        rest = sorted(by, key=lambda name: found[name] - total * by[name] / whole)
        return {name: found[name] + (name in rest[: total - sum(found.values())]) for name in by}

    of = split(n, {str(c): s for c, s in shares.items()})
    return {(c, d): m for c, total in of.items() for d, m in split(total, levels).items() if m}


def difficulty(limits: Limits, *, doubted: bool) -> None:
    prompts = generate(SourceParams(n=1_800, library="wide", difficulties=EACH), day=DAY)
    prompts["level"] = prompts["difficulty"].map(LEVEL)
    prompts["judged"] = [demands(text) for text in prompts["text"]]
    student = learnt()
    rows = [
        [category, *_measured(part, student[student["category"] == category])]
        for category, part in prompts.groupby("category")
    ]
    rows.append(["all", *_measured(prompts, student)])
    computed = {t.template_id for t in load_shipped_templates("wide") if t.derived}
    rows.append(
        [
            "answers that are computed",
            *_measured(
                prompts[prompts["template_id"].isin(computed)],
                student[student["template_id"].isin(computed)],
            ),
        ]
    )
    header = [
        "category",
        "judged: easy, medium, hard",
        "rank correlation",
        "learnt: easy, medium, hard",
        "of a template's levels",
    ]
    print_table("Difficulty, measured against the level that was asked for", header, rows)
    rho = rank_correlation(prompts["level"], prompts["judged"])
    limits.check(
        rho > RHO,
        f"rank correlation of level and judged difficulty: {rho:.3f} over {len(prompts):,} "
        f"prompts, limit above {RHO}",
    )
    least = min(
        (rank_correlation(part["level"], part["judged"]), c)
        for c, part in prompts.groupby("category")
    )
    taught = student["template_id"].isin(computed)
    of_levels = rank_correlation(student.loc[taught, "level"], _within(student[taught]))
    limits.check(
        of_levels > RHO,
        "rank correlation of level and what a student gets wrong of computed answers: "
        f"{of_levels:.3f}, limit above {RHO}",
    )
    limits.check(
        least[0] > RHO, f"the least of a category, {least[1]}: {least[0]:.3f}, limit above {RHO}"
    )
    if doubted:
        doubts(limits)
    else:
        limits.skip(
            f"rank correlation of level and a reward model's doubts, limit above {RHO}: run with "
            "--doubts, which breaks it"
        )


def _measured(prompts: pd.DataFrame, student: pd.DataFrame) -> list[str]:
    judged = " ".join(f"{m:.1f}" for m in prompts.groupby("level")["judged"].mean())
    if student.empty:
        return [
            judged,
            f"{rank_correlation(prompts['level'], prompts['judged']):.3f}",
            "nothing to check",
            "-",
        ]
    errors = " ".join(f"{m:.2f}" for m in student.groupby("level")["error"].mean())
    return [
        judged,
        f"{rank_correlation(prompts['level'], prompts['judged']):.3f}",
        errors,
        f"{rank_correlation(student['level'], _within(student)):.3f}",
    ]


def _within(student: pd.DataFrame) -> pd.Series:
    """Errors against the mean of their template's levels: templates are compared with
    themselves.
    """
    return student["error"] - student.groupby("template_id")["error"].transform("mean")


def rank_correlation(a: pd.Series, b: pd.Series) -> float:
    return float(a.corr(b, method="spearman"))


def learnt() -> pd.DataFrame:
    """The share of wrong answers of the student, one row a checkable template and level that has
    examples enough.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    rng = np.random.default_rng(0)
    rows = []
    for template in load_shipped_templates("wide"):
        drafts = filled(template, STUDENT_SEES + STUDENT_ASKED, rng) if template.reference else []
        if len(drafts) < STUDENT_SEES + STUDENT_ASKED // 2:
            continue
        seen, asked = drafts[:STUDENT_SEES], drafts[STUDENT_SEES:]
        words = CountVectorizer(token_pattern=r"\w+").fit([d.text for d in seen])
        known, new = (words.transform([d.text for d in part]) for part in (seen, asked))
        nearest = np.asarray((new @ known.T).todense()).argmax(axis=1)
        error = float(
            np.mean([seen[i].reference != d.reference for i, d in zip(nearest, asked, strict=True)])
        )
        rows.append(
            {
                "template_id": template.template_id,
                "category": template.category.value,
                "level": LEVEL[template.difficulty],
                "error": error,
            }
        )
    return pd.DataFrame(rows)


def filled(template: object, n: int, rng: np.random.Generator) -> list[Draft]:
    """Up to `n` different drafts of a template."""
    found: dict[str, Draft] = {}
    for i in rng.permutation(template.n_combinations)[: 20 * n]:  # type: ignore[attr-defined]
        draft = template.fill(int(i))  # type: ignore[attr-defined]
        if draft is not None:
            found.setdefault(draft.text, draft)
        if len(found) == n:
            break
    return list(found.values())


def doubts(limits: Limits) -> None:
    """Eight heads on the offline encoder, fitted on right against wrong answers to 12 prompts of
    each template and level, asked of 6.
    """
    from rlhf_pipeline.reward_model import disagreement
    from rlhf_pipeline.reward_model.base import preference_probability
    from rlhf_pipeline.reward_model.embedding import EmbeddingParams, EmbeddingRewardModel

    rng = np.random.default_rng(0)
    rows = []
    for template in load_shipped_templates("wide"):
        drafts = filled(template, 18, rng) if template.reference else []
        for k, draft in enumerate(drafts):
            others = sorted({d.reference for d in drafts} - {draft.reference}) or ["yes"]
            wrong = others[int(rng.integers(len(others)))]
            rows.append(
                {
                    "prompt": draft.text,
                    "chosen": draft.reference,
                    "rejected": wrong,
                    "level": LEVEL[template.difficulty],
                    "seen": k < 12,
                }
            )
    both = pd.DataFrame(rows)
    seen, asked = both[both["seen"]].reset_index(drop=True), both[~both["seen"]]
    numbers = range(1, len(seen) + 1)
    pairs = seen[["prompt", "chosen", "rejected"]].assign(
        day=DAY,
        comparison_id=[f"c{i}" for i in numbers],
        prompt_id=[f"p{i}" for i in numbers],
        margin=1.0,
        agreement=1.0,
        n_votes=3,
        chosen_side="a",
        annotator_kind="simulated",
        category="factual",
        split="train",
        max_seq=list(numbers),
    )
    model = EmbeddingRewardModel(EmbeddingParams(n_members=8)).fit(
        check_frame(pairs, PREFERENCE_PAIRS)
    )
    texts = [asked[name].tolist() for name in ("prompt", "chosen", "rejected")]
    doubt = pd.Series(disagreement(model, *texts), index=asked.index)
    p = pd.Series(
        preference_probability(model.score(texts[0], texts[1]) - model.score(texts[0], texts[2])),
        index=asked.index,
    )
    measures = {
        "disagreement": doubt,
        "nearness to a tie": 1 - (2 * p - 1).abs(),
        "prefers the wrong answer": (p < 0.5).astype(float),
    }
    print_table(
        f"A reward model's doubts, {len(asked)} prompts",
        ["", "easy", "medium", "hard", "rank correlation with the level"],
        [
            [
                name,
                *(f"{v:.3f}" for v in of.groupby(asked["level"]).mean()),
                f"{rank_correlation(asked['level'], of):.3f}",
            ]
            for name, of in measures.items()
        ],
    )
    rho = rank_correlation(asked["level"], doubt)
    limits.check(
        rho > RHO,
        f"rank correlation of level and a reward model's doubts: {rho:.3f} over {len(asked):,} "
        f"prompts, limit above {RHO}",
    )


def constraints(limits: Limits) -> None:
    rows = []
    for name, rule in RULES.items():
        report = Report()
        params = SourceParams(n=200, library="all", **rule)
        frame = generate(params, day=DAY, report=report)
        checked = Constraints(params)
        violators = sum(checked.find_violation(text) is not None for text in frame["text"])
        without_reason = sum(not r.reason for r in report.rejections)
        rows.append([name, len(frame), f"{report.n_rejected.total():,}", without_reason, violators])
        limits.check(
            violators == 0 and len(frame) == 200,
            f"violators of {name} among {len(frame)} prompts: {violators}, limit 0",
        )
    print_table(
        "Constraints",
        [
            "rule",
            "prompts",
            "rejected on the way",
            "of these without a reason",
            "violators that came through",
        ],
        rows,
    )


def batch(limits: Limits) -> None:
    """A file of 100 rows, three of them bad in three ways."""
    rows = [
        json.dumps({"prompt": f"Question {i}?", "domain": "interview"}).encode() for i in range(100)
    ]
    rows[17], rows[42], rows[99] = (
        b'{"prompt": "caf\xe9"}',
        b'{"prompt": ',
        b'{"prompt": "", "domain": "interview"}',
    )
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "batch.jsonl"
        file.write_bytes(b"\n".join(rows))
        frame = generate(
            SourceParams(n=97, source="dataset"), day=DAY, source_file=file, report=report
        )
    named = [
        int(re.search(r"line (\d+)", r.where).group(1))  # type: ignore[union-attr]
        for r in report.rejections
    ]
    print_table(
        "A batch of 100 rows, 3 of them bad",
        ["line", "reason"],
        [[n, r.reason] for n, r in zip(named, report.rejections, strict=True)],
    )
    limits.check(
        len(frame) == 97 and named == [18, 43, 100],
        f"{len(frame)} landed, lines {named} named, limit 97 and [18, 43, 100]",
    )


def evolution(limits: Limits) -> None:
    """By rules; five generations, six seeds."""
    rows = []
    for seed in range(6):
        generator, report = EvolutionGenerator(), Report()
        frame = generate_with(
            generator,
            SourceParams(n=120, source="evolution", library="wide", seed=seed),
            day=DAY,
            report=report,
        )
        means = generator.mean_fitness_
        ids = {i.draft.prompt_id for i in generator.history_}
        orphans = sum(
            not set(json.loads(variables)["parents"]) <= ids for variables in frame["variables"]
        )
        texts = [shingles(text) for text in frame["text"]]
        alike = max(jaccard(a, b) for i, a in enumerate(texts) for b in texts[:i])
        rows.append(
            [
                seed,
                *(f"{m:.2f}" for m in means),
                len(ids),
                report.n_near_duplicates,
                f"{alike:.2f}",
                orphans,
            ]
        )
        limits.check(
            means[-1] > means[0] and not orphans and alike <= 0.8,
            f"seed {seed}: fitness {means[0]:.2f} to {means[-1]:.2f}, {orphans} without parents, "
            f"nearest two {alike:.2f}",
        )
    header = [
        "seed",
        *(f"generation {g}" for g in range(6)),
        "lived",
        "near-duplicates dropped",
        "similarity of the nearest two",
        "parents unknown",
    ]
    print_table("Evolution by rules: mean fitness (demands) of those alive", header, rows)


def near_duplicates(limits: Limits) -> None:
    """Recall against the exact similarity of every two, and what a text costs."""
    texts = generate(SourceParams(n=2_000, library="wide"), day=DAY)["text"].tolist()
    sets = [shingles(text) for text in texts]
    exact = [max((jaccard(sets[i], sets[k]) for k in range(i)), default=0.0) for i in range(500)]
    rows = []
    for limit in (0.6, 0.7, 0.8, 0.9):
        seen, found = NearDuplicates(limit), []
        started = time.process_time()
        for text in texts:
            found.append(seen.find(text) is not None)
            seen.add(text)
        cost = (time.process_time() - started) / len(texts)
        truth = [s > limit for s in exact]
        hit = sum(a and b for a, b in zip(truth, found, strict=False))
        false = sum(b and not a for a, b in zip(truth, found, strict=False))
        rows.append([limit, sum(truth), hit, false, f"{1000 * cost:.2f}"])
        limits.check(
            hit >= 0.99 * sum(truth) and false == 0,
            f"near-duplicates above {limit}: {hit} of {sum(truth)} found, {false} false, limit "
            "99 % and 0",
        )
    print_table(
        "Near-duplicates among template prompts",
        ["above", "of the first 500", "found", "false", "CPU ms a text, of 2,000"],
        rows,
    )


def memory(limits: Limits, large: int) -> None:
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for what in ("templates", "dataset, JSONL", "dataset, CSV", "dataset, Parquet"):
            peak = {}
            for n in (SMALL, large):
                command = [sys.executable, __file__, "--make", str(n)]
                if what != "templates":
                    command += [
                        "--rows",
                        str(rows_file(Path(folder), what.rpartition(" ")[2].lower(), n)),
                    ]
                said = json.loads(
                    subprocess.run(command, capture_output=True, text=True, check=True).stdout
                )
                peak[n] = said["mb"]
                rows.append(
                    [
                        what,
                        f"{n:,}",
                        f"{said['mb']:.0f}",
                        f"{said['cpu_s']:.1f}",
                        f"{said['lines']:,}",
                    ]
                )
            most = RSS_TIMES * peak[SMALL] + RSS_PLUS_MB
            limits.check(
                peak[large] <= most,
                f"{what}: peak RSS at {large:,} prompts: {peak[large]:.0f} MB, limit {RSS_TIMES} x "
                f"{peak[SMALL]:.0f} + {RSS_PLUS_MB:.0f} = {most:.0f} MB",
            )
    print_table(
        "Memory of a process that makes and writes prompts",
        ["source", "prompts", "peak RSS MB", "CPU s", "lines written"],
        rows,
    )


def rows_file(folder: Path, kind: str, n: int) -> Path:
    path = folder / f"{n}.{kind}"
    texts = [
        f"Question {i} about the number {i * 7919} and what it may mean for the harbor of the "
        "island, in two sentences?"
        for i in range(n)
    ]
    rows = pd.DataFrame({"text": texts, "category": "factual", "domain": "sea"})
    if kind == "jsonl":
        rows.to_json(path, orient="records", lines=True)
    elif kind == "csv":
        rows.to_csv(path, index=False)
    else:
        rows.to_parquet(path)
    return path


def make(n: int, rows: Path | None) -> int:
    from rlhf_pipeline.prompts import write_jsonl

    frame = generate(
        SourceParams(n=n, library="all", source="dataset" if rows else "templates"),
        day=DAY,
        source_file=rows,
    )
    with tempfile.TemporaryDirectory() as folder:
        lines = write_jsonl(frame, Path(folder) / "prompts.jsonl")
    usage = resource.getrusage(resource.RUSAGE_SELF)
    # ru_maxrss of a child begins at what its parent held; VmHWM is this process's own.
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    print(
        json.dumps(
            {
                "mb": int(peak.group(1)) / 1024,
                "cpu_s": usage.ru_utime + usage.ru_stime,
                "lines": lines,
            }
        )
    )  # type: ignore[union-attr]
    return 0


if __name__ == "__main__":
    sys.exit(main())
