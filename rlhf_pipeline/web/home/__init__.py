"""The start page: whether the loop is healthy, and what to do next."""
