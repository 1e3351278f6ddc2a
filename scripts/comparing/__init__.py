"""Compares packed datasets with other ways to keep and read training data. Run by scripts/compare.

command.py    options, measuring, tables, the results as JSON
inputs.py     the workloads: loose files that every system converts
systems.py    the systems: how each writes what it reads, and reads an epoch of it

Rounds, checksums and loops are those of `benchmark`. A new system is a class in systems.py, and an entry in SYSTEMS.
"""
