"""Retrains the policy after a confirmed change: the trigger, the data and the training strategy.

`triggers` decides whether and how a change is answered; `selection` and `preparation` make the
retraining set, `training` and `strategies` the candidate.
"""
