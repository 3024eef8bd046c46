"""No bar is met by quietly making the simulated world easier."""

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.bench_annotators import worlds
from benchmarks.simulation import read_simulation, simulation_hash

ROOT = Path(__file__).parents[2]
PINNED = "b9892fc9fff85402700f236cb08ef0bfb63bfc47b60968e8809e783f10457932"
# Of the choices and true differences of one simulated world: pins what the simulator draws, too.
DRAWN = "b0087e799e3791c4d839187cafef7fa8b85b4fad7f5c9bcf5b33146cb23062f4"
DRAWS = {
    "normal",
    "binomial",
    "random",
    "integers",
    "choice",
    "logistic",
    "beta",
    "gamma",
    "poisson",
    "uniform",
    "simulate",
}


def test_simulation_parameters_equal_the_measured_ones() -> None:
    assert simulation_hash() == PINNED, (
        "benchmarks/simulation.yaml has changed. Make that a commit of its own: run "
        "bench_simulated.py, bench_annotators.py and bench_calibration.py, quote their new tables "
        "in docs/learning.md, and pin the new hash here."
    )


def test_simulated_annotators_draw_the_same_votes_as_when_measured() -> None:
    truth = worlds(read_simulation().annotators.position_bias)[0]
    drawn = "".join(truth.votes["choice"]) + "".join(f"{d:.6f}" for d in truth.d)
    assert hashlib.sha256(drawn.encode()).hexdigest() == DRAWN, (
        "tests/unit/votes/simulated.py draws another world than the one that the bars were "
        "measured in: as with simulation.yaml."
    )


def test_every_world_has_three_seeds_and_the_stated_ceiling() -> None:
    simulation = read_simulation()
    assert all(
        len(set(world.vote_seeds)) >= 3 for world in (simulation.reward_model, simulation.overlap)
    )
    assert all(
        len(set(seeds)) >= 3
        for seeds in (simulation.annotators.seeds, simulation.calibration.seeds)
    )
    assert simulation.reward_model.ceiling == 0.90
    assert simulation.reward_model.n_comparisons >= 10_000


def test_the_worlds_are_as_hard_as_the_bars_say() -> None:
    simulation = read_simulation()
    spammers, calibration = simulation.annotators.spammers, simulation.calibration
    assert spammers.spammers >= 0.2
    assert spammers.n_prompts * spammers.votes_each / spammers.n_annotators <= 20
    assert calibration.trigger.n_votes <= 200
    assert {1.0, 2.0} <= set(calibration.trigger.stated)
    assert calibration.ceiling.flips >= 0.15
    assert min(calibration.ceiling.n_repeats) <= 450


def drawn_from_numbers(source: str) -> Iterator[tuple[int, str]]:
    """Calls that draw, with a number written into them that is neither 0, 1 nor 0.5 (no mean, a
    unit, a coin).
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else node.func.id
                if isinstance(node.func, ast.Name)
                else ""
            )
            given = [*node.args, *(k.value for k in node.keywords)]
            if name in DRAWS and any(
                isinstance(one, ast.Constant) and one.value not in (0, 1, 0.5) for one in given
            ):
                yield node.lineno, ast.unparse(node)


@pytest.mark.parametrize("name", ["bench_annotators", "bench_calibration"])
def test_no_benchmark_has_parameters_of_its_own(name: str) -> None:
    assert not list(
        drawn_from_numbers((ROOT / "benchmarks" / f"{name}.py").read_text(encoding="utf-8"))
    )


def test_the_search_finds_a_parameter_of_its_own() -> None:
    assert list(drawn_from_numbers("odds = rng.normal(0, 1.2, n)"))
    assert list(drawn_from_numbers("truth = simulate(200, spammers=0.2, seed=seed)"))
    assert not list(drawn_from_numbers("odds = rng.normal(0, world.sd, n)"))
