import inspect
import pkgutil
from importlib import import_module
from importlib.metadata import distributions
from pathlib import Path

import pytest
from pydantic import BaseModel, Field, create_model

from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.plugins import Members, NoParams, select_params
from rlhf_pipeline.feedback.datasets.formats import FORMATS
from rlhf_pipeline.generate.completions import BACKENDS
from rlhf_pipeline.generate.prompts import GENERATORS
from rlhf_pipeline.improve.retraining.strategies import STRATEGIES
from rlhf_pipeline.learn.calibration import CALIBRATORS
from rlhf_pipeline.learn.reward_model import REWARD_MODELS
from rlhf_pipeline.watch.drift import DETECTORS

ROOT = Path(__file__).parents[3]
MODULE = """
from rlhf_pipeline.generate.completions import CompletionResult

class Echo:
    name, model_version = "echo", "echo-1"

    def complete(self, requests):
        for request in requests:
            yield CompletionResult(text=request.prompt, n_tokens=1)
"""


def distribution(folder, *lines, group="completions"):
    """An installed package as pip leaves it: a dist-info folder beside a module."""
    info = folder / "echo_backend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: echo-backend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[rlhf_pipeline.{group}]\n" + "".join(f"{line}\n" for line in lines)
    )
    (folder / "echo_backend.py").write_text(MODULE)
    return lambda name: [
        p for d in distributions(path=[str(folder)]) for p in d.entry_points.select(group=name)
    ]


def test_package_adds_its_backend_to_the_built_in_ones(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    members = Members(
        "completions", dict(BACKENDS), distribution(tmp_path, "echo = echo_backend:Echo")
    )
    assert list(members) == [*BACKENDS, "echo"]
    assert members["echo"]().model_version == "echo-1"


def test_installed_package_is_discovered(tmp_path, monkeypatch):
    distribution(tmp_path, "echo = echo_backend:Echo")
    monkeypatch.syspath_prepend(tmp_path)
    assert "echo" in Members("completions", {})
    assert "echo" not in Members("drift", {})


def test_nothing_is_imported_before_the_mapping_is_read(tmp_path):
    groups = []
    members = Members("drift", {"ddm": int}, lambda group: groups.append(group) or [])
    assert groups == []
    assert list(members) == ["ddm"]
    assert groups == ["rlhf_pipeline.drift"]


def test_two_members_of_one_name_are_refused_by_package(tmp_path):
    members = Members(
        "completions", {"template": int}, distribution(tmp_path, "template = echo_backend:Echo")
    )
    with pytest.raises(ConfigurationError, match=r"echo-backend registers 'template'.*taken"):
        list(members)


@pytest.mark.parametrize("value", ["echo_backend:Missing", "no_such_module:Echo"])
def test_a_member_that_cannot_be_imported_names_its_package(tmp_path, monkeypatch, value):
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ConfigurationError, match=r"echo-backend registers 'echo'.*cannot be imported.*uninstall"
    ):
        dict(Members("completions", {}, distribution(tmp_path, f"echo = {value}")))


class Common(BaseModel):
    n: int = 1


class FirstParams(BaseModel):
    first_n: int = Field(2, description="first")


class First:
    name, Params = "first", FirstParams


def test_unknown_member_is_refused_with_the_known_ones():
    members = Members("drift", {"first": First})
    assert (members.get("fisrt"), "fisrt" in members) == (None, False)
    with pytest.raises(ConfigurationError, match=r"^No 'fisrt' in rlhf_pipeline.drift. Known: f"):
        members["fisrt"]


class Second:
    name, Params = "second", NoParams


class Third:
    name, Params = "third", NoParams


def test_a_model_has_the_fields_of_every_member():
    members = Members("drift", {"first": First, "second": Second, "third": Third})
    combined = type("Combined", members.params(Common), {})
    assert list(combined.model_fields) == ["n", "first_n"]
    assert issubclass(combined, Common)
    assert select_params(FirstParams, combined(first_n=5)) == FirstParams(first_n=5)
    assert select_params(FirstParams, Common()) == FirstParams()


def clash(**fields):
    return type("Clash", (), {"Params": create_model("ClashParams", **fields)})


def test_two_members_may_not_define_one_parameter_differently():
    other = clash(first_n=(int, Field(3, description="first")))
    with pytest.raises(ConfigurationError, match=r"'first' .* and 'clash' .*'first_n'.*Rename"):
        Members("drift", {"first": First, "clash": other}).params()


KINDS = {  # folder of the mapping -> what a plug-in imports, and a class to inherit from
    "prompts": ("from rlhf_pipeline.generate.prompts import Selection, PromptParams", "object"),
    "drift": ("from rlhf_pipeline.watch.drift.base import DriftDetector, Signal", "object"),
    "calibration": (
        "from rlhf_pipeline.learn.calibration.base import Calibrator, check_rows",
        "object",
    ),
    "retraining.strategies": (
        "from rlhf_pipeline.improve.retraining.strategies.sft import SFT",
        "SFT",
    ),
}


FOLDERS = {
    "rlhf_pipeline.generate.prompts": (GENERATORS, "generate"),
    "rlhf_pipeline.generate.completions": (BACKENDS, "from_settings"),
    "rlhf_pipeline.watch.drift": (DETECTORS, "find_rises"),
    "rlhf_pipeline.learn.calibration": (CALIBRATORS, "from_json"),
    "rlhf_pipeline.learn.reward_model": (REWARD_MODELS, "weights_hash"),
    "rlhf_pipeline.improve.retraining.strategies": (STRATEGIES, "train"),
    "rlhf_pipeline.feedback.datasets.formats": (FORMATS, "write"),
}


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_implementation_in_a_folder_is_registered(folder):
    """`method` is what only members of the folder have; the protocol in base.py has it too and is
    no member, nor is a class without a name that members inherit from.
    """
    mapping, method = FOLDERS[folder]
    modules = [
        import_module(f"{folder}.{m.name}")
        for m in pkgutil.iter_modules(import_module(folder).__path__)
        if m.name != "base"
    ]
    kinds = {
        v
        for m in modules
        for base in vars(m).values()
        if inspect.isclass(base)
        for v in (base, *base.__subclasses__())
        if v.__module__ == m.__name__ and "name" in vars(v) and hasattr(v, method)
    }
    assert kinds == {member for member in mapping.values() if member.__module__.startswith(folder)}
    assert {name: getattr(member, "name", None) for name, member in mapping.items()} == {
        name: name for name in mapping
    }
