"""Curated data sets: REST calls, the list, a data set and its pairs."""
