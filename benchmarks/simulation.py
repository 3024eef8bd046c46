"""The parameters of the simulated worlds, from the one file that holds them. Knows the file; knows no benchmark."""

import hashlib
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field

FILE = Path(__file__).with_name("simulation.yaml")


class World(BaseModel):
    """Comparisons of random style, and people of one taste who vote on them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    n_comparisons: int = Field(ge=1)
    ceiling: float = Field(gt=0.5, lt=1, description="accuracy against single votes of somebody who knows the taste")
    votes_per_comparison: int = Field(ge=1)
    texts_seed: int = Field(ge=0)
    vote_seeds: tuple[int, ...] = Field(min_length=1)
    n_members: int = Field(ge=2, description="of the ensemble")


class Simulation(BaseModel):
    """Every simulated world of the reward model's bars."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reward_model: World
    overlap: World


def read_simulation() -> Simulation:
    return Simulation.model_validate(yaml.safe_load(FILE.read_text(encoding="utf-8")))


def simulation_hash() -> str:
    """SHA-256 of the file as it stands, 64 hex characters: printed with every table made from it."""
    return hashlib.sha256(FILE.read_bytes()).hexdigest()
