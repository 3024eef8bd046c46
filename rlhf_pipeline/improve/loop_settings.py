"""Loop settings: the section `loop:` of `rlhf.yaml`, one part per stage that has parameters.

They are the defaults of every run, whether a schedule, a sensor, a command or a person starts it.
Each part is checked by the parameter class of its stage, installed members of a mapping included.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails

from rlhf_pipeline.core.config import LOOP, Settings, read_settings_file
from rlhf_pipeline.core.errors import ConfigurationError
from rlhf_pipeline.core.parameters import (
    Parameters,
    find_switches_as_numbers,
    section_class,
    suggest,
)
from rlhf_pipeline.feedback.votes import PairParams
from rlhf_pipeline.generate.comparisons import PairingParams, RoutingParams
from rlhf_pipeline.generate.completions import CallParams, CompletionParams
from rlhf_pipeline.generate.prompts import GENERATORS
from rlhf_pipeline.generate.prompts.parameters import SourceParams
from rlhf_pipeline.improve.evaluation import EvaluationParams, GateParams
from rlhf_pipeline.improve.retraining.parameters import StrategyParams, read_strategy_params
from rlhf_pipeline.improve.retraining.selection import SelectionParams
from rlhf_pipeline.improve.retraining.strategies import STRATEGIES, check_batch
from rlhf_pipeline.improve.retraining.triggers import TriggerParams
from rlhf_pipeline.improve.reward_training import CalibrateParams
from rlhf_pipeline.learn.calibration import CalibrationThresholds, OverTimeParams
from rlhf_pipeline.learn.reward_model import RewardModelParams, launchpad_class
from rlhf_pipeline.learn.reward_model.trainer import TrainerParams, check_training
from rlhf_pipeline.watch.alerts.rules import AlertParams
from rlhf_pipeline.watch.drift.report import DriftParams

# Choices that include installed members: a wrong one is refused while it is typed in the launchpad.
_Source: Any = Literal[("", *GENERATORS)]
_Strategy: Any = Literal[tuple(sorted(STRATEGIES))]

PRICES_AND_DAY = {"prompt_price", "completion_price", "budget_per_day"}


class PromptsParams(SourceParams):
    """Number, categories, difficulties, constraints and source of a day's prompts."""

    source: _Source = Field(
        default="",
        description=f"One of {', '.join(GENERATORS)}; empty = the setting prompt_source",
    )
    uses_backend: bool = Field(
        default=False,
        description="For the sources freeform, evolution and distilabel: the completion backend "
        "writes prompts and rates their difficulty",
    )


class CompletionsParams(CompletionParams, CallParams):
    """Completions per prompt and sampling; rate limits and budgets of a provider. API keys are
    settings.
    """

    least_per_prompt: int = Field(
        default=2,
        ge=1,
        le=64,
        description=str(CompletionParams.model_fields["least_per_prompt"].description),
    )


class ComparisonsParams(PairingParams, RoutingParams):
    """Pairs per prompt, share of repeats, seed of order and side, share for human annotators."""


class AnnotatorModelParams(Parameters):
    """The votes whose agreement is measured."""

    blind_only: bool = Field(
        default=False,
        description="Agreement and figures of annotators without votes of people who could read "
        "others' votes, as if these had not been cast; the joint model uses all votes",
    )


class DriftReportParams(DriftParams, OverTimeParams):
    """Detectors, windows, required agreement, thresholds of the calibration tests, and the span of
    calibration over time.
    """

    calibration: CalibrationThresholds = Field(
        default_factory=CalibrationThresholds,
        description="When the day's predictions count as badly calibrated",
    )


class CandidateParams(StrategyParams):
    """Training strategy and its parameters."""

    strategy: _Strategy = Field(
        default="dpo", description=f"Training strategy: {', '.join(sorted(STRATEGIES))}"
    )
    params_file: str | None = Field(
        default=None,
        description="YAML or JSON file of training parameters on the run's machine; its values "
        "override these fields",
    )

    usd_per_hour: float | None = Field(
        default=None,
        ge=0,
        description="Price of an hour of the machine that trains, in US dollars: the cost of a "
        "training is reported; null = unknown",
    )

    canaries: int = Field(
        default=0,
        ge=0,
        le=200,
        description="Rows with random secrets that are added to the training, but to no stored "
        "set; the gate refuses a candidate that learnt them by heart. 0 = none; 16 are enough",
    )

    def training_params(self) -> StrategyParams:
        """These parameters, overridden by those of the file. Raises ConfigurationError for an
        invalid file.
        """
        file_params = (
            read_strategy_params(Path(self.params_file)).model_dump(exclude_unset=True)
            if self.params_file
            else {}
        )
        return StrategyParams(
            **self.model_dump(include=set(StrategyParams.model_fields)) | file_params
        )


class ReleaseParams(Parameters):
    """Who may deploy a version."""

    approval: Literal["none", "required"] = Field(
        default="none",
        description="required = a version that the gate lets through, or that a person deploys, "
        "waits until a second person with the permission models.promote approves it",
    )
    checklist: tuple[Annotated[str, Field(min_length=1, max_length=300)], ...] = Field(
        default=(),
        max_length=20,
        description="Lines that the approver has to tick, such as an ethics review",
    )


class ExperimentParams(Parameters):
    """When an experiment stops its treatment by itself."""

    slow_s: float = Field(
        default=10.0, gt=0, description="A slow answer takes longer than this, in seconds"
    )
    max_ratio: float = Field(
        default=1.25,
        ge=1,
        description="The treatment is stopped once sessions with errors, or with slow answers, are "
        "surely more than this many times as frequent as in the control",
    )


class ScheduleParams(BaseModel):
    """Times of the daily schedules, as HH:MM in UTC."""

    model_config = ConfigDict(extra="forbid")

    collection: str = Field(default="05:00", description="The day's prompts to comparisons")
    close_yesterday: str = Field(default="00:30", description="Feedback of the day before")
    housekeeping: str = Field(default="03:15", description="Deletion of expired data")
    simulated_voting: str = Field(default="08:00", description="Votes of simulated annotators")

    @field_validator("*", mode="before")
    @classmethod
    def _check_time(cls, value: object) -> str:
        text = str(value)
        hour, colon, minute = text.partition(":")
        is_time = hour.isdecimal() and minute.isdecimal() and len(minute) == 2 and bool(colon)
        if not is_time or int(hour) > 23 or int(minute) > 59:
            raise ValueError("must be a time of the day as HH:MM, in UTC")
        return f"{int(hour):02d}:{minute}"

    def cron(self, schedule: str) -> str:
        """The cron expression of one schedule.

        >>> ScheduleParams(collection="6:45").cron("collection")
        '45 6 * * *'
        """
        hour, minute = getattr(self, schedule).split(":")
        return f"{int(minute)} {int(hour)} * * *"


# In the order of the loop. All but trigger, release, experiment, schedules and alerts are stages.
PARTS: dict[str, type[BaseModel]] = {
    "prompts": PromptsParams,
    "completions": CompletionsParams,
    "comparisons": ComparisonsParams,
    "preference_pairs": PairParams,
    "annotator_model": AnnotatorModelParams,
    "reward_model": launchpad_class(),
    "calibration": CalibrateParams,
    "drift_report": DriftReportParams,
    "retraining_trigger": TriggerParams,
    "retraining_set": SelectionParams,
    "candidate_model": CandidateParams,
    "evaluation": EvaluationParams,
    "gate": GateParams,
    "release": ReleaseParams,
    "experiment": ExperimentParams,
    "schedules": ScheduleParams,
    "alerts": AlertParams,
}


@dataclass(frozen=True)
class LoopSettings:
    """What `rlhf.yaml` sets, by part; everything else is at its default."""

    given: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, settings: Settings, *, only: str | None = None) -> Self:
        """Read the settings file of the home anew; with `only`, one part of it, whatever is wrong
        with the others.

        Raises ConfigurationError naming part, field, bound and the nearest known name.
        """
        if settings.config is None:
            return cls()
        section = read_settings_file(settings.config).get(LOOP)
        try:
            values = _mapping({} if section is None else section, LOOP)
            return cls.parse(values if only is None else {only: values.get(only)})
        except ConfigurationError as cause:
            raise ConfigurationError(f"{settings.config}: {cause}") from None

    @classmethod
    def parse(cls, section: object) -> Self:
        """Check the section; raises as `read`, with every problem."""
        problems: list[str] = []
        parts = {}
        for name, values in _mapping(section, LOOP).items():
            path = f"{LOOP}.{name}"
            if name not in PARTS:
                problems.append(f"{path} is unknown. {suggest(name, PARTS)}")
            elif values is not None:
                try:
                    parts[name] = _validate(name, _mapping(values, path))
                except ConfigurationError as cause:
                    problems.append(str(cause))
        if problems:
            raise ConfigurationError(" ".join(problems))
        return cls(parts)

    def params(self, part: str) -> BaseModel:
        """The parameters of one part."""
        return PARTS[part].model_validate(self.given.get(part, {}))

    @cached_property
    def trigger(self) -> TriggerParams:
        return cast(TriggerParams, self.params("retraining_trigger"))

    @cached_property
    def calibration(self) -> CalibrateParams:
        return cast(CalibrateParams, self.params("calibration"))

    @cached_property
    def alerts(self) -> AlertParams:
        return cast(AlertParams, self.params("alerts"))

    def calls(self, **more: Any) -> CallParams:
        """Prices and daily budget of the calls outside the asset `completions`, such as those that
        write prompts; its other limits are its own.
        """
        prices = self.params("completions").model_dump(include=PRICES_AND_DAY)
        return CallParams(**(prices | more))

    @cached_property
    def schedules(self) -> ScheduleParams:
        return cast(ScheduleParams, self.params("schedules"))


def warn_of_toy_policy(settings: Settings) -> str:
    """That own prompts are completed by the embedded policy; empty where they are not. Without it
    people are asked to judge nonsense, and nobody says why.
    """
    prompts = cast(PromptsParams, LoopSettings.read(settings, only="prompts").params("prompts"))
    source = prompts.source or settings.prompt_source
    is_own = source != "templates" or settings.prompts_file is not None
    is_local = settings.completion_backend == "local"
    if settings.policy is not None or not is_own or not is_local:
        return ""
    return (
        "the completions are texts of a toy policy: the embedded one answers only the shipped "
        "prompt templates, and writes nonsense on your own prompts. Name a causal LM by "
        "RLHF_POLICY, or a provider by RLHF_COMPLETION_BACKEND"
    )


def _describe_problem(part: str, error: ErrorDetails) -> str:
    path = [LOOP, part, *map(str, error["loc"])]
    if error["type"] == "value_error":  # of our own validators, whose sentence is whole
        return f"{'.'.join(path)}: {error['msg'].removeprefix('Value error, ').rstrip('.')}."
    if error["type"] != "extra_forbidden":
        return f"{'.'.join(path)}: {error['msg']}, not {error['input']!r}."
    kind = PARTS[part]
    for section in path[2:-1]:
        kind = section_class(kind, section) or _item_class(kind, section) or kind
    return f"{'.'.join(path)} is unknown. {suggest(path[-1], kind.model_fields)}"


def _item_class(kind: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The parameter class of the values of a field that maps names to them."""
    field = kind.model_fields.get(name)
    values = get_args(field.annotation)[1:] if field is not None else ()
    return next((v for v in values if isinstance(v, type) and issubclass(v, BaseModel)), None)


def _mapping(values: object, path: str) -> Mapping[str, Any]:
    if not isinstance(values, dict):
        raise ConfigurationError(
            f"{path} must hold `name: value` lines, not a {type(values).__name__}."
        )
    return {str(name): value for name, value in values.items()}


def _validate(part: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as JSON. Raises ConfigurationError with every problem."""
    problems = [
        f"{LOOP}.{part}.{name} must be a number, not {values[name]}."
        for name in find_switches_as_numbers(PARTS[part], values)
    ]
    try:
        params = PARTS[part].model_validate(values)
    except ValidationError as cause:
        problems += [_describe_problem(part, error) for error in cause.errors()]
    if problems:
        raise ConfigurationError(" ".join(problems)) from None
    try:
        if isinstance(params, RewardModelParams):
            kind_params = params.kind_params()
            if isinstance(kind_params, TrainerParams):
                check_training(kind_params)
        if isinstance(params, CandidateParams):
            check_batch(params.strategy, params)
    except ConfigurationError as cause:
        raise ConfigurationError(f"{LOOP}.{part}: {cause}") from None
    return params.model_dump(mode="json", exclude_unset=True)
