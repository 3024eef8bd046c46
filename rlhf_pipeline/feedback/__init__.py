"""Turns votes into preference pairs, and says how far to trust them.

In: counted votes, and files that people bring (`datasets`). Out: agreement, consensus, figures of
annotators, the joint annotator model, preference pairs with their splits, exports. The assets are
`votes`, `annotator_model` and `preference_pairs`.
"""
