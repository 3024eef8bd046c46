"""No bar is met by quietly making the simulated world easier."""

from benchmarks.simulation import read_simulation, simulation_hash

PINNED = "ff721d03c162159c91b43811347ecb50b18eb040286f1d0c1ae25a61645f5ee3"


def test_the_simulations_parameters_are_the_ones_that_the_bars_were_measured_with() -> None:
    assert simulation_hash() == PINNED, (
        "benchmarks/simulation.yaml has changed. Make that a commit of its own: run `python benchmarks/bench_simulated.py`, quote its new "
        "tables in docs/learning.md, and pin the new hash here."
    )


def test_every_world_has_three_seeds_and_the_first_the_ceiling_that_the_bar_names() -> None:
    simulation = read_simulation()
    assert all(len(set(world.vote_seeds)) >= 3 for world in (simulation.reward_model, simulation.overlap))
    assert simulation.reward_model.ceiling == 0.90
    assert simulation.reward_model.n_comparisons >= 10_000
