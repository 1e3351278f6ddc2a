"""The benchmark: each row measures reading or converting beside what it is compared with.

row.py          what a row is, and the decorator that makes one of a function
measuring.py    sides measured in turn, round after round
page_cache.py   files in memory or not, bytes read from disk
inputs/         what is read and converted, made once and kept
loops.py        the loops in RAM that reading is compared with
rows/           the rows, a module for each kind of data
table.py, plot.py, command.py
"""
