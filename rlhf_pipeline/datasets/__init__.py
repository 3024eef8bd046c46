"""Data sets in and out: importing files of comparisons, votes and prompts. Knows files and frames;
the store is handed in.
"""
