import pytest

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.improve.retraining.parameters import (
    StrategyParams,
    parse_strategy_params,
    read_strategy_params,
)


def test_an_unknown_key_fails_with_a_hint():
    with pytest.raises(
        ConfigurationError,
        match=r"Unknown training parameter 'learning_rat'\. Did you mean learning_rate",
    ):
        parse_strategy_params({"learning_rat": 1e-4})


@pytest.mark.parametrize(
    ("name", "text"),
    [("p.yaml", "beta: 0.2\nepochs: 3\n"), ("p.json", '{"beta": 0.2, "epochs": 3}')],
)
def test_parameters_are_read_from_yaml_and_json(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert read_strategy_params(tmp_path / name) == StrategyParams(beta=0.2, epochs=3)


@pytest.mark.parametrize("text", [b"- 1\n", b"beta: [", b"\xff\xfe\x00"])
def test_parameter_file_without_a_mapping_is_named(tmp_path, text):
    (tmp_path / "p.yaml").write_bytes(text)
    with pytest.raises(ConfigurationError, match=r"p\.yaml"):
        read_strategy_params(tmp_path / "p.yaml")
