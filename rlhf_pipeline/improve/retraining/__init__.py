"""Retrains the policy after a confirmed change: the trigger, the data and the training strategy."""
