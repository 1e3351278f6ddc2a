"""Measures reading and converting next to other ways to do the same. Run by scripts/bench.

command.py     options, the table, the results as JSON
measuring.py   rows and their targets; sides measured in turn, checksums, what is in memory
rows/          the rows, a module for each kind of input
loops.py       epochs in RAM, through Loader and DataLoader, of the datasets in file_datasets.py too
against.py     the code next to that of a commit; inside.py converts and reads in each of the two
apart.py       work in a process of its own, which holds as little as the command `packer`
inputs.py      what is read and converted: arrays and files, and how many
store.py       makes inputs once, packs them, and keeps them between runs

A new row is a function of a bench that returns sides, ours first, under a line that names it and its target:

    @Row("pairs 16/64, lz4, batch 8, Loader", "in-RAM x[idx]", at_least=1.2, batch=8)
    @Row("pairs 16/64, lz4, batch 128, Loader", "in-RAM x[idx]", at_least=1.2, batch=128)
    def lz4_against_indexing(bench, batch): ...

A side is `epochs(name, batches, samples, checksum)`: whatever gives batches, other systems too.
"""
