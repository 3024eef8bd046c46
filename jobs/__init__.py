"""The jobs of the loop and their schedules. A job is a selection of assets; what runs when is said
here and in sensors/.
"""
