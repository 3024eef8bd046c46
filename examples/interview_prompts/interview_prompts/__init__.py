"""Job-interview questions as a source of prompts for rlhf-pipeline."""

from interview_prompts.generator import InterviewGenerator

__all__ = ["InterviewGenerator"]
