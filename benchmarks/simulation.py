"""The parameters of the simulated worlds, from the one file that holds them. Knows the file; knows
no benchmark.
"""

import hashlib
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field

FILE = Path(__file__).with_name("simulation.yaml")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RewardModelWorld(_Part):
    """Comparisons of random style, and people of one taste who vote on them."""

    n_comparisons: int = Field(ge=1)
    ceiling: float = Field(
        gt=0.5, lt=1, description="accuracy against single votes of somebody who knows the taste"
    )
    votes_per_comparison: int = Field(ge=1)
    texts_seed: int = Field(ge=0)
    vote_seeds: tuple[int, ...] = Field(min_length=1)
    n_members: int = Field(ge=2, description="of the ensemble")


class Crowd(_Part):
    """All pairs of each prompt's completions, each judged by annotators of whom some vote at
    random.
    """

    n_prompts: int = Field(ge=1)
    completions: int = Field(ge=2, description="of a prompt")
    n_annotators: int = Field(ge=1)
    votes_each: int = Field(ge=1, description="of a comparison")
    spammers: float = Field(ge=0, le=1, description="share of annotators who vote at random")
    bias: float = Field(description="logits by which everybody leans to the left")


class MillionVotes(_Part):
    """As many votes as are asked for, drawn at once."""

    seed: int = Field(ge=0)
    completions: int = Field(ge=2, description="of a prompt, all pairs compared")
    n_annotators: int = Field(ge=1)
    votes_each: int = Field(ge=1)
    discrimination: float = Field(
        gt=0, description="mean over annotators: what one unit of utility is felt as"
    )
    discrimination_sd: float = Field(ge=0)
    tie_width: float = Field(ge=0)


class AnnotatorWorlds(_Part):
    """Worlds of the annotator model's bars."""

    seeds: tuple[int, ...] = Field(min_length=3)
    consensus: Crowd
    shared: Crowd
    spammers: Crowd
    position_bias: Crowd
    million: MillionVotes


class Trigger(_Part):
    """A day's stream of votes, and what a model states of them."""

    n_votes: int = Field(ge=2)
    stated: tuple[float, ...] = Field(
        description="log odds stated, as multiples of the true ones; 1 is calibrated"
    )
    streams: tuple[tuple[float, int], ...] = Field(
        description="standard deviation of the true log odds, votes a comparison"
    )


class Holdout(_Part):
    """A model that errs and is too bold, calibrated on some comparisons and judged on others."""

    n_comparisons: int = Field(ge=2, description="to calibrate on, and as many to judge on")
    votes_each: int = Field(ge=1)
    sd: float = Field(gt=0, description="of the true log odds")
    error_sd: float = Field(ge=0, description="of what the model believes less the truth")
    stated: tuple[float, ...] = Field(
        description="what it states, as multiples of what it believes"
    )


class RepeatWorld(_Part):
    """People who see the better side and take the other one by mistake, asked again with sides
    swapped.
    """

    flips: float = Field(gt=0, lt=0.5)
    n_annotators: int = Field(ge=1)
    n_repeats: tuple[int, ...] = Field(min_length=1)


class CalibrationWorlds(_Part):
    """Worlds of the calibration's bars."""

    seeds: tuple[int, ...] = Field(min_length=3)
    trigger: Trigger
    holdout: Holdout
    ceiling: RepeatWorld


class Simulation(_Part):
    """Every simulated world that a bar is measured in."""

    reward_model: RewardModelWorld
    overlap: RewardModelWorld
    annotators: AnnotatorWorlds
    calibration: CalibrationWorlds


def read_simulation() -> Simulation:
    return Simulation.model_validate(yaml.safe_load(FILE.read_text(encoding="utf-8")))


def simulation_hash() -> str:
    """SHA-256 of the file as it stands, 64 hex characters: printed with every table made from
    it.
    """
    return hashlib.sha256(FILE.read_bytes()).hexdigest()
