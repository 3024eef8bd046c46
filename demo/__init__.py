"""The demo: drives the real jobs and sensors in one process, day by simulated day, and tells what
happened.
"""
