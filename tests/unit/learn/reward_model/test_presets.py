import pytest

from rlhf_pipeline.learn.reward_model import PRESETS, reward_model_params


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_fitted_and_recorded(name: str) -> None:
    params = reward_model_params(preset=name)
    recorded = params.to_report()
    assert {key: recorded[key] for key in PRESETS[name]} == dict(PRESETS[name])
    assert recorded["preset"] == name


def test_explicit_values_override_the_preset() -> None:
    params = reward_model_params(preset="best", n_members=2, fine_tuning={"steps": 7})
    own = params.kind_params()
    assert (own.n_members, own.steps, own.learning_rate) == (2, 7, 1e-4)
    other = reward_model_params(preset="best", kind="transformer").kind_params()
    assert other.n_members == 3
