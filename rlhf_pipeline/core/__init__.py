"""What three rooms or more share: records, frames, errors, settings, files, intervals, plug-ins.

In: nothing of this library; modules here import one another only in the order that
`tests/test_architecture.py` lists. Out: types and small functions without state. A type that one
room alone uses stands beside its owner.
"""
