"""Votes: cast, list and search them."""
