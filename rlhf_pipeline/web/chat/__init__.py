"""The deployed version behind OpenAI's API."""
