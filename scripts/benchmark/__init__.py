"""Measures reading and converting side by side with what they are compared with. Run by scripts/bench.

command.py       options, the table, the results as JSON
measuring.py     a row and its target; sides measured in turn, checksums, what is in memory
rows/            the rows, a module for each kind of input
loops.py         epochs in RAM, through Loader and DataLoader, and the datasets that ours are compared with
interpreter.py   work in processes of their own
inputs/          what is read and converted, made once and kept between runs
"""
