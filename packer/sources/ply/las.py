"""Scans in LAS and LAZ (`.las`, `.laz`), by laspy: one file a sample.

Fields are named as those of PLY are (`packer.sources.ply.fields`). `xyz` (n, 3) float64 are the scaled coordinates, as
laspy's `las.xyz`; `red green blue` are `rgb` uint16. Everything else has the name that laspy gives it; parts of bytes
such as `classification` and `return_number` are uint8, and extra dimensions with a scale are float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import BytesIO, FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError
from packer.sources.files import open_raw, read_file, unreadable
from packer.sources.kinds import Kind, pair_in_order
from packer.sources.looking import Header
from packer.sources.options import SourceOptions
from packer.sources.ply.header import COLUMN_TYPES, Property
from packer.sources.ply.kind import agree, arrays_of, chosen_fields, contents_of_points, header_of, origin
from packer.sources.table import Row

_SIGNATURE = b"LASF"
_MOST_POINTER_BYTES = 1024
#: The stored integers of coordinates, which are scaled to these.
_SCALED = {"X": "x", "Y": "y", "Z": "z"}
#: Where the header has the version, and those that are known.
_VERSION, _VERSIONS = slice(24, 26), [(1, minor) for minor in range(5)]
#: Where the header has the number of its records, and the bytes of the least one.
_RECORD_COUNT, _RECORD_BYTES = slice(100, 104), 54
#: How the record of LASzip begins if points are in one piece, as its first versions wrote them.
_IN_ONE_PIECE = b"\1\0"
#: Where the record of LASzip has the points of a chunk, and what it is if they differ.
_CHUNK_POINTS, _OF_ANY_SIZE = slice(12, 16), 2**32 - 1
#: What stands for the place of the table of chunks if the last bytes of the file say it, and how many these are.
_AT_END, _PLACE_BYTES = 2**64 - 1, 8
#: The error of a decoder in Rust that met what it did not expect; no Exception.
_PANIC = "PanicException"
#: How many records of its own a file has beside the points, such as its coordinate system.
_RECORDS = "records"
#: Records that say how the points are stored.
_OF_POINTS = ("ExtraBytesVlr", "LasZipVlr", "CopcInfoVlr", "CopcHierarchyVlr", "WaveformPacketVlr")


def look(row: Row, options: SourceOptions) -> Header:
    """Return what the header of a file says; raises SourceError as `read`."""
    with _opened(row.path) as reader:
        header = reader.header
        others = (header.number_of_evlrs or 0) + sum(type(record).__name__ not in _OF_POINTS for record in header.vlrs)
        none = np.zeros(0, header.point_format.dtype())
        import laspy

        points = laspy.ScaleAwarePointRecord(none, header.point_format, header.scales, header.offsets)
        contents = contents_of_points(
            _columns(points, header, row.path, options),
            header.point_count,
            row.path,
            options,
            _bytes_after(header, row.path),
        )
    looked = header_of(contents, options)
    return looked._replace(numbers={**looked.numbers, _RECORDS: others})


def read(row: Row, options: SourceOptions) -> dict[str, Any]:
    """Return the fields of a file; raises SourceError if it cannot be read, or is not what its header declares."""
    with _opened(row.path) as reader:
        count = reader.header.point_count
        points = reader.read_points(-1)
        if len(points) != count:
            raise SourceError(f"declares {count:,} points, and has {len(points):,}; download it again", row.path)
        columns = _columns(points, reader.header, row.path, options)
        return arrays_of(contents_of_points(columns, count, row.path, options), row)


def _bytes_after(header: Any, path: str) -> int:
    """Return how many bytes follow the last point, or the table of chunks; 0 if these are not alone at the end."""
    if header.number_of_evlrs or header.global_encoding.waveform_data_packets_internal:
        return 0
    size = Path(path).stat().st_size
    if not header.are_points_compressed:
        return max(0, size - int(header.offset_to_point_data + header.point_count * header.point_format.size))
    import lazrs

    with open_raw(path) as file:
        table, stop = _chunk_table(file, header.offset_to_point_data, size)
        file.seek(table)
        record, again = lazrs.LazVlr(header.vlrs.get("LasZipVlr")[0].record_data), BytesIO()
        # The table is compressed, and does not say how long it is. Programs write it alike.
        lazrs.write_chunk_table(again, lazrs.read_chunk_table_only(file, record), record)
        return max(0, stop - table - len(again.getvalue()))


def _columns(points: Any, header: Any, path: str, options: SourceOptions) -> list[tuple[Property, NDArray[Any]]]:
    """Return the dimensions of points as properties of PLY vertices: (points,) each.

    Raises:
        SourceError: a number of a dimension stands for a missing value, and no option says how it is packed.
    """
    columns, no_data = [], _no_data(header)
    for name in points.point_format.dimension_names:
        name = _SCALED.get(name, name)
        values = np.asarray(points[name])
        if name in no_data and not options.stored and _is_wanted(name, options):
            if not options.scaled:
                shown = ", ".join(map(str, no_data[name].tolist()))
                how = "--scaled packs NaN in their place, and --stored the numbers as they are"
                raise SourceError(f"{name} has no_data {shown}: these numbers stand for missing values; {how}", path)
            is_missing = points.array[name] == no_data[name]
            values = values.astype(np.result_type(values, np.float32))
            values[is_missing.reshape(values.shape)] = np.nan
        for k, column in enumerate(values.T if values.ndim > 1 else [values]):
            dtype = COLUMN_TYPES[column.dtype.name]
            columns.append((Property(f"{name}_{k}" if values.ndim > 1 else name, dtype), column))
    return columns


def _is_wanted(name: str, options: SourceOptions) -> bool:
    """Return whether `--fields` does not leave out a dimension."""
    return (choice := chosen_fields(options)) in ("same", "common", "all") or name in choice


def _no_data(header: Any) -> dict[str, NDArray[Any]]:
    """Return the stored numbers of extra dimensions, one for each column, that stand for missing values."""
    structs = [struct for record in header.vlrs.get("ExtraBytesVlr") for struct in record.extra_bytes_structs]
    declared = {struct.name.decode(): struct.no_data for struct in structs if struct.data_type}
    return {name: numbers for name, numbers in declared.items() if numbers is not None and (numbers == numbers).any()}


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    """Open a file by laspy; errors of laspy and of the decoder on damaged files become a SourceError."""
    import laspy

    start, size = read_file(path, _MOST_POINTER_BYTES)
    if not start.startswith(_SIGNATURE):
        raise SourceError(f"is no LAS file: it does not begin with {_SIGNATURE.decode()}; download it again", path)
    if tuple(start[_VERSION]) not in _VERSIONS:
        reason = f"is of version {'.'.join(map(str, start[_VERSION]))}, and 1.0 to 1.4 are known"
        raise SourceError(f"{reason}; write it as one of these, or download it again", path)
    if int.from_bytes(start[_RECORD_COUNT], "little") * _RECORD_BYTES > size:
        raise SourceError("declares more records than it has room for; download it again", path)
    one_thread = laspy.LazBackend.Lazrs  # processes are many already
    try:
        with laspy.open(path, laz_backend=one_thread, read_evlrs=False) as reader:
            _check(reader.header, size, path)
            yield reader
    except (SourceError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        words = " ".join(str(error).split()) or type(error).__name__
        raise unreadable(error, path, f"cannot be read as LAS ({words}); download it again") from error


def _check(header: Any, size: int, path: str) -> None:
    """Raise SourceError if a file of `size` bytes cannot hold what its header declares: nothing is allocated for it."""
    count, start = header.point_count, header.offset_to_point_data
    most = (size - start) // header.point_format.size
    if header.are_points_compressed:
        records = header.vlrs.get("LasZipVlr")
        if records and records[0].record_data.startswith(_IN_ONE_PIECE):
            raise SourceError("is compressed in one piece, as by early versions of LASzip; write it again", path)
        with open_raw(path) as file:
            table, stop = _chunk_table(file, start, size)
            chunks = _number_at(file, table) >> 32 if start <= table <= stop - _PLACE_BYTES else size
        if not records or chunks * header.point_format.size > size:  # a chunk begins with a whole point
            raise SourceError("the record or the table of its compressed chunks is damaged; download it again", path)
        chunk_points = int.from_bytes(records[0].record_data[_CHUNK_POINTS], "little")
        most = count if chunk_points == _OF_ANY_SIZE else chunks * chunk_points
    if count > most:
        raise SourceError(f"declares {count:,} points, but has room for {max(0, most):,}; download it again", path)


def _chunk_table(file: FileIO, start: int, size: int) -> tuple[int, int]:
    """Return where the table of the chunks from `start` on begins, and where the file ends that it belongs to."""
    table = _number_at(file, start)
    if table == _AT_END:  # the file was written to a pipe
        return _number_at(file, size - _PLACE_BYTES), size - _PLACE_BYTES
    return table, size


def _number_at(file: FileIO, place: int) -> int:
    """Return the 8 bytes at a place as a number; 0 beyond the end."""
    file.seek(max(0, place))
    return int.from_bytes(file.read(8), "little")


KIND = Kind(
    "las",
    (".las", ".laz"),
    look,
    read,
    names_fields=True,
    lies_beside=True,
    needs=("laspy", "LAS", "lidar"),
    options=("fields", "cast", "group", "scaled", "stored"),
    exports="ply",
    none_left="none of its files can be packed",
    pair=pair_in_order,
    agree=partial(
        agree, sentences={_RECORDS: "records beside the points, such as the coordinate system (VLRs), are not packed"}
    ),
    are_ragged=True,
    origin=origin,
)
