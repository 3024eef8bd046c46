"""Clusters of prompts in which the reward model errs, followed over days."""
