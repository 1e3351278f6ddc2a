"""--sparse: rows of a sparse matrix, as AnnData keeps it, become two ragged fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from opened_sources import open_hdf5

from packer.convert import convert
from packer.errors import SourceError, UsageError
from packer.export import export
from packer.sources import SourceOptions
from readers import PackedDataset

GENES = 9


def write(path: Path, counts: list[list[int]], **changes: Any) -> str:
    """A matrix of so many cells and genes, with embeddings of the cells and names of the genes beside it."""
    path.parent.mkdir(exist_ok=True)
    dense = np.array(counts, np.float32).reshape(-1, GENES)
    rows, indices = np.nonzero(dense)
    parts = {
        "data": dense[rows, indices],
        "indices": indices.astype(np.int32),
        "indptr": np.concatenate([[0], np.cumsum((dense != 0).sum(axis=1))]).astype(np.int32),
        **changes,
    }
    with h5py.File(path, "w") as file:
        for name, values in parts.items():
            file[f"X/{name}"] = values
        file["obsm/X_pca"] = np.arange(len(dense) * 2, dtype=np.float32).reshape(-1, 2)
        file["var/n"] = np.arange(GENES)
    return str(path)


def test_the_option_is_named_where_rows_differ(tmp_path: Path) -> None:
    """As of AnnData and 10x, whose arrays have no common axis: the error names --sparse and the group."""
    with pytest.raises(SourceError, match="; X: sparse matrices, whose rows are packed by --sparse X"):
        open_hdf5(write(tmp_path / "a.h5ad", [[1] * GENES] * 4))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")  # torch says so once a process
@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.sampled_from([0, 0, 0, 1, 7]), min_size=GENES, max_size=GENES), min_size=1, max_size=30))
def test_a_batch_is_the_matrix_again(tmp_path_factory: pytest.TempPathFactory, counts: list[list[int]]) -> None:
    """Rows of any number of values, none too; what else has a row a cell is packed with them."""
    folder = tmp_path_factory.mktemp("sparse")
    path = write(folder / "a.h5ad", counts)
    convert(path, folder / "out", workers=0, source=SourceOptions(sparse=("X",), skip=("var",)))
    batch = PackedDataset(folder / "out")[range(len(counts))]
    assert set(batch) == {"X.data", "X.indices", "obsm.X_pca"}
    indices, data = batch["X.indices"], batch["X.data"]
    shape = (len(counts), GENES)
    found = torch.sparse_csr_tensor(indices.ptr, indices.values.long(), data.values, size=shape, check_invariants=True)
    assert np.array_equal(found.to_dense().numpy(), np.array(counts, np.float32))


def test_rows_are_read_in_blocks_and_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many blocks a source gives, and wherever a part begins, a row is the same."""
    monkeypatch.setattr("packer.sources.arrays.reading.BLOCK_BYTES", 300)
    counts = np.random.default_rng(0).integers(0, 3, (50, GENES)).tolist()
    source = open_hdf5(write(tmp_path / "a.h5", counts), sparse=["/X"], skip=["var"])
    for start, stop in ((0, 50), (13, 31)):
        blocks = list(source.slice(start, stop).read())
        assert len(blocks) > 1
        found = [row for block in blocks for row in block["X.data"]]
        for row, expected in zip(found, counts[start:stop], strict=True):
            assert row.tolist() == [value for value in expected if value]


def anndata(path: Path, classes: list[str], codes: list[int]) -> str:
    """Cells as AnnData has them: names, a categorical column, a second matrix, and what has another number of rows."""
    write(path, [[1] * GENES] * len(codes))
    with h5py.File(path, "r+") as file:
        file["obs/_index"] = [f"cell{n}" for n in range(len(codes))]
        column = file.create_group("obs/kind")
        column.attrs["encoding-type"] = "categorical"
        column["categories"], column["codes"] = classes, np.array(codes, "i1")
        for part, values in {"data": codes, "indices": codes, "indptr": [0, 1, len(codes)]}.items():
            file[f"obsp/near/{part}"] = values
        file["uns/colours"] = ["red"] * (len(codes) + 1)
        file["uns/none"] = h5py.Empty("f4")
    return str(path)


def test_what_belongs_to_cells_is_packed_with_them(tmp_path: Path) -> None:
    """Their names as text, categories as classes; one remark names all that has another number of rows."""
    path = anndata(tmp_path / "a.h5ad", ["B", "T", "NK"], [2, 0, -1, 1])
    source = open_hdf5(path, sparse=["X"])
    (block,) = source.read()
    assert set(block) == {"X.data", "X.indices", "obsm.X_pca", "obs._index", "obs.kind.codes"}
    assert (block["obs._index"], block["obs.kind.codes"].tolist()) == ([f"cell{n}" for n in range(4)], [2, 0, -1, 1])
    assert source.origin["categories"] == {"obs.kind.codes": ["B", "T", "NK"]}
    (remark,) = source.remarks
    assert remark == (
        "left out, since they have no row for each row of the sparse matrix: /obsp/near/data, /obsp/near/indices, "
        "/obsp/near/indptr, /uns/colours, /uns/none and 1 more"
    )
    labels = open_hdf5(path, sparse=["X"], pick={"label": "/obs/kind/codes"})
    assert labels.origin["classes"] == ["B", "T", "NK"]


def test_classes_of_several_files_are_numbered_alike(tmp_path: Path) -> None:
    """Or the file is a bad one: its numbers would stand for others."""
    anndata(tmp_path / "in/a.h5ad", ["B", "T"], [0, 1])
    anndata(tmp_path / "in/b.h5ad", ["T", "B"], [0, 1])
    with pytest.raises(SourceError, match=r"classes T, B, not .*classes B, T"):
        open_hdf5(str(tmp_path / "in"), sparse=["X"])


def test_barcodes_of_10x(tmp_path: Path) -> None:
    """They lie in the group of the matrix, as do the genes, which have another number."""
    path = write(tmp_path / "a.h5", [[1] * GENES] * 3)
    with h5py.File(path, "r+") as file:
        file.move("X", "matrix")
        file["matrix/barcodes"], file["matrix/shape"] = np.array(["AC", "GT", "TT"], "S18"), [GENES, 3]
        file["matrix/features/name"] = np.array(["gene"] * GENES, "S9")
    (block,) = open_hdf5(path, sparse=["matrix"]).read()
    assert set(block) == {"matrix.data", "matrix.indices", "matrix.barcodes", "obsm.X_pca"}
    assert block["matrix.barcodes"] == ["AC", "GT", "TT"]


def test_an_export_writes_the_matrix_again(tmp_path: Path) -> None:
    """The same options pack it again."""
    path = write(tmp_path / "a.h5ad", [[0] * GENES, [1] * GENES, [0, 2, *[0] * 7]], indices=np.arange(10, dtype=">i4"))
    options = SourceOptions(sparse=("/X/",), skip=("var",))
    convert(path, tmp_path / "out", workers=0, source=options)
    export(tmp_path / "out", tmp_path / "back")
    with h5py.File(path) as file, h5py.File(tmp_path / "back/a.h5ad") as back:
        for name in ("data", "indices", "indptr"):
            assert np.array_equal(file["X"][name], back["X"][name])
    again = open_hdf5(str(tmp_path / "back/a.h5ad"), sparse=("X",))
    assert [row.tolist() for block in again.read() for row in block["X.data"]] == [[], [1] * GENES, [2]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"indptr": np.array([0, 2, 1, 3])}, "must ascend from 0 to 3"),
        ({"indptr": np.array([0, 1, 2, 9])}, "must ascend from 0 to 3"),
        (
            {"indices": np.zeros((3, 2))},
            "--sparse X: a group with the arrays data, indices and indptr, each of one axis, is expected",
        ),
        ({"indices": np.zeros(2, np.int32)}, "X/indices starts: it must ascend from 0 to 2"),
    ],
)
def test_what_is_no_sparse_matrix(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    """Starts that do not ascend, or fit only one of the two parts, are refused before anything is packed."""
    path = write(tmp_path / "a.h5", np.eye(3, GENES).tolist(), **changes)
    with pytest.raises(SourceError, match=words):
        open_hdf5(path, sparse=["X"], skip=["var"])


def test_columns_are_no_rows(tmp_path: Path) -> None:
    """A matrix by columns (CSC) is refused by what the file says of it."""
    path = write(tmp_path / "a.h5", np.eye(3, GENES).tolist())
    with h5py.File(path, "r+") as file:
        file["X"].attrs["encoding-type"] = "csc_matrix"
    with pytest.raises(SourceError, match="/X is a sparse matrix by columns"):
        open_hdf5(path, sparse=["X"], skip=["var"])
    with pytest.raises(UsageError, match="--sparse: samples are the rows"):
        open_hdf5(path, sparse=["X"], samples="groups")
