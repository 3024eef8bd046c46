"""The signed-in user: statistics, own votes, password and tokens."""
