"""What starts runs: new votes start feedback, enough pairs start learning, drift starts retraining
(`retraining.py`), a killed run starts its retry.
"""
