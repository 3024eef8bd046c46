"""Prompts in any number, for tests that ask a STUB."""

import pandas as pd

from rlhf_pipeline.frames import PROMPTS, check_frame


def prompts_of(n: int, text: str = "Prompt number {}?") -> pd.DataFrame:
    return check_frame(
        pd.DataFrame(
            {
                "day": "2026-01-01",
                "prompt_id": [f"p{i}" for i in range(n)],
                "text": [text.format(i) for i in range(n)],
                "category": "factual",
                "difficulty": "easy",
                "source": "templates",
                "template_id": None,
                "variables": "{}",
                "reference": None,
                "seed": 1,
            }
        ),
        PROMPTS,
    )
