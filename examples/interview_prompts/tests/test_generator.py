"""The generator keeps the promises of every prompt source."""

from interview_prompts.generator import InterviewGenerator

from rlhf_pipeline.simulation.testing import check_generator


def test_the_generator_keeps_the_promises() -> None:
    check_generator(InterviewGenerator)
