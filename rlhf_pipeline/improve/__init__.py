"""Improves the policy after a confirmed change, and promotes a candidate that is measurably better.

In: drift events, preference pairs, the champion. Out: one decision a change, a retraining set, a
candidate policy, its evaluation and the gate's verdict. The assets are `retraining_decision`,
`retraining_set`, `candidate_model`, `evaluation` and `gate`.
"""
