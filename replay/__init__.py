"""The replay in a terminal: imported days lived through again in this process, by the same steps as
the sensor's.
"""
