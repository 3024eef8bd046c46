"""Two policy versions on the same prompts: completions and scores."""
