"""The jobs of the loop and their schedules. A job is a selection of assets; schedules are here,
sensors in sensors/.
"""
