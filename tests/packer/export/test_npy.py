"""NumPy files out of a packed dataset."""

from __future__ import annotations

import numpy as np

from packer.convert import convert
from packer.export import export
from packer.sources import SourceOptions


def test_rows_are_one_array_a_field(tmp_path, files_of):
    """Arrays that were packed row by row come back as the files that they were, over several blocks and shards."""
    rng = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in/x.npy", rng.normal(size=(3000, 64, 8)).astype(np.float32))
    np.save(tmp_path / "in/y.npy", rng.integers(0, 9, 3000))
    np.save(tmp_path / "in/ok.npy", rng.integers(0, 2, (3000, 3)).astype(bool))
    sources = [f"{field}={tmp_path}/in/{field}.npy" for field in ("x", "y", "ok")]
    convert(sources, tmp_path / "d", workers=0, shard_size=2**20)
    report = export(tmp_path / "d", tmp_path / "out", to="npy")
    assert (report.files, report.notes) == (3, ())
    assert files_of(tmp_path / "out") == files_of(tmp_path / "in")
    assert export(tmp_path / "d", tmp_path / "usual").to == "hdf5"


def test_samples_with_names_are_files(tmp_path, files_of):
    """Arrays of any length come back in their folders; without names, ragged ones are numbered."""
    arrays = [np.random.default_rng(n).normal(size=(n, 3)) for n in range(11)]
    for n, array in enumerate(arrays):
        path = tmp_path / "in/x" / "ab"[n % 2] / f"{n}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array)
    convert(f"x={tmp_path}/in/x", tmp_path / "d", workers=0, source=SourceOptions(samples="files"))
    export(tmp_path / "d", tmp_path / "out", to="npy")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "in")
    convert([{"x": array} for array in arrays], tmp_path / "numbered")
    export(tmp_path / "numbered", tmp_path / "numbers", to="npy")
    assert [np.load(tmp_path / f"numbers/x/{n:02}.npy").tolist() for n in range(11)] == [a.tolist() for a in arrays]
