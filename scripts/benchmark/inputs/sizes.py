"""How large the inputs are: for a quick run, and as large as the targets were set for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Numbers of samples, files and points.

    Attributes:
        rows: of 33 float32 and a label.
        small_pairs, large_pairs: of 16/64 px and of 48/192 px.
        small_files, large_files: how many of these are PNG files too.
        lmdb: of the small pairs, stored one key a sample.
        clouds: of 500 to 20,000 points.
        cold, cold_reads: samples of 48 kB in the file, and read in one measurement.
        tiny_rows: opened in 100 shards.
        order: numbers of an epoch's order.
        loaded: samples that a DataLoader over single samples reads in one measurement.
        text_files, text_points: text PLY files, and points of each.
        ply_files, ply_points: binary PLY files, and points of each.
        hdf5_rows: of 33 float32 in an HDF5 file.
        png_copies, small_copies: how often the large and the small PNG files are converted in one measurement.
        planned: PNG pairs that are planned.
        shard, hdf5_shard: raw bytes of a shard, about, where files are converted, and where the HDF5 file is.
        made: megabytes of pictures that are made while they are packed.
        pictures: large ones, of which crops are read.
        picture: rows and columns of such a picture.
    """

    rows: int = 1_000_000
    small_pairs: int = 10_000
    large_pairs: int = 1_500
    small_files: int = 500
    large_files: int = 200
    lmdb: int = 4_000
    clouds: int = 1_000
    cold: int = 8_000
    cold_reads: int = 500
    tiny_rows: int = 10_000_000
    order: int = 10_000_000
    loaded: int = 10_000
    text_files: int = 24
    text_points: int = 5_000
    ply_files: int = 500
    ply_points: int = 10_000
    hdf5_rows: int = 1_200_000
    png_copies: int = 8
    small_copies: int = 8
    planned: int = 10_000
    # As many shards for one worker as for the other. By themselves they would be of 64 MiB at least; smaller ones
    # would measure how processes start and wait for the disk: of HDF5, which takes least a byte, first of all.
    shard: int = 45 * 2**20
    hdf5_shard: int = 90 * 2**20
    made: int = 200
    pictures: int = 6
    picture: tuple[int, int] = (1356, 2040)


QUICK = Sizes()
FULL = Sizes(
    rows=2_000_000,
    small_pairs=20_000,
    large_pairs=5_000,
    small_files=2_000,
    large_files=1_000,
    lmdb=20_000,
    clouds=4_000,
    cold=40_000,
    cold_reads=5_000,
    loaded=100_000,
    text_files=100,
    text_points=10_000,
    ply_files=2_000,
    hdf5_rows=2_000_000,
    png_copies=5,
    small_copies=10,
    planned=100_000,
    shard=72 * 2**20,
    hdf5_shard=72 * 2**20,
    made=8_000,
    pictures=36,
)
#: For the tests of the benchmark itself.
TINY = Sizes(
    rows=2_000,
    small_pairs=64,
    large_pairs=16,
    small_files=16,
    large_files=8,
    lmdb=32,
    clouds=20,
    cold=64,
    cold_reads=32,
    tiny_rows=10_000,
    order=10_000,
    loaded=200,
    text_files=2,
    text_points=200,
    ply_files=4,
    ply_points=100,
    hdf5_rows=1_000,
    png_copies=1,
    small_copies=1,
    planned=50,
    made=10,
    pictures=2,
    picture=(800, 500),
)
