"""`rlhf status`: what each stage waits for and what comes next."""

from collections.abc import Callable

from click.testing import Result


def test_new_home_names_its_next_steps(rlhf: Callable[..., Result]) -> None:
    lines = rlhf("status").output.splitlines()
    assert sum("never ran" in line for line in lines) == 14
    assert any("policy demo.policy@1, reward model none yet" in line for line in lines)
    assert any("nothing collected yet" in line for line in lines)
    assert any("0 of 350 voted comparisons" in line for line in lines)
    assert any(
        "fires when reported by the sequential test or 3 detectors within" in line for line in lines
    )
