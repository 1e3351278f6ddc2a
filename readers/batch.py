"""What a batch is: tensors, `Ragged` and lists by field; to torch's `DataLoader` a list of samples.

`DataLoader(ds, batch_size=128)` passes the result of `__getitems__` to `default_collate`, which looks at the type of
the first item. `Sample` is registered there: given all items of one batch, in order and unchanged, it returns the
gathered batch. A collate function of the user's own, `Subset` and `StackDataset` see a sequence of dicts.

Two kinds of batches are collated item by item, as those of any other dataset: where a transform returned a tuple, list
or tensor, and where something else was put into an item. (The tensors of an item are views of the batch. Values changed
in place change in the batch too; a shape changed in place, as by `unsqueeze_`, goes unnoticed.)
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import UserDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import is_
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from packer.errors import UsageError
from readers.gather import CPU
from readers.valid import check_read

#: torch cannot gather unsigned integers of several bytes, so they are viewed as signed ones of the same size.
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
#: An axis longer than this is not the channels of an image.
CHANNELS = 4
#: Types of values in the result of a transform that may be meant for every sample of the batch.
_VALUES = (torch.Tensor, np.ndarray, np.generic, str, bytes, int, float, complex, type(None))


#: Lengths of samples that the printed form shows.
_SHOWN_LENGTHS = 8


def _make_operators(operation: Callable[[Any, Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the two methods of `Ragged` for an operation: with the operand on the right, and on the left."""
    return (
        lambda ragged, operand: ragged._apply(operation, operand),
        lambda ragged, operand: ragged._apply(operation, operand, operand_first=True),
    )


class Ragged:
    """Values of a whole batch. torch's pytree takes it for a nest of two tensors, and `DataLoader` pins it.

    `len(ragged)` is B, `ragged[i]` are the rows of sample i, a view, `ragged[1:3]` the Ragged of two samples.
    Arithmetic and comparisons are those of `values`: `ragged / 255`, `ragged > 0`, or `ragged - centre` with a tensor
    or an array of one row.

    It is neither a tuple nor an `Iterable`: frameworks look for the batch size in these, and would find the length of
    `values`.

    With `Loader(as_numpy=True)` both are arrays; methods that make tensors, such as `to_padded()`, do not work then.

    Attributes:
        values: (sum of n_i, ...); sample i has the rows offsets[i] to offsets[i + 1].
        offsets: (B + 1,) int64, beginning with 0.
    """

    __slots__ = ("offsets", "values")

    def __init__(self, values: Tensor, offsets: Tensor) -> None:
        self.values = values
        self.offsets = offsets

    def __repr__(self) -> str:
        if not hasattr(self.values, "shape"):  # a nest of something else, as torch's pytree makes it
            return f"Ragged(values={self.values!r}, offsets={self.offsets!r})"
        lengths = ", ".join(map(str, self.lengths[:_SHOWN_LENGTHS].tolist()))
        more = ", ..." if len(self) > _SHOWN_LENGTHS else ""
        device = getattr(self.values, "device", "cpu")
        place = "" if str(device) == "cpu" else f", device={str(device)!r}"
        return (
            f"Ragged(batch_size={len(self)}, lengths=[{lengths}{more}], values={tuple(self.values.shape)}, "
            f"dtype={self.dtype}{place})"
        )

    def __len__(self) -> int:
        return self.batch_size

    @overload
    def __getitem__(self, number: int) -> Tensor: ...
    @overload
    def __getitem__(self, number: slice) -> Ragged: ...
    def __getitem__(self, number: int | slice) -> Tensor | Ragged:
        chosen = range(len(self))[number]
        if isinstance(chosen, range):
            if chosen.step != 1:
                raise TypeError(
                    f"a slice of a Ragged takes samples one after another, not with a step of {chosen.step}"
                )
            offsets = self.offsets[chosen.start : max(chosen.stop, chosen.start) + 1]
            return Ragged(self.values[int(offsets[0]) : int(offsets[-1])], offsets - offsets[0])
        start, stop = self.offsets[chosen:][:2].tolist()
        return self.values[start:stop]

    def _with_values(self, values: Tensor) -> Ragged:
        return Ragged(values, self.offsets)

    def _apply(self, operation: Callable[[Any, Any], Any], operand: Any, operand_first: bool = False) -> Any:
        """Return it with the values that an operation with something else gives."""
        if operand is None or isinstance(operand, str):
            return NotImplemented  # so that `ragged == None` is False, as of other objects
        if isinstance(operand, Ragged):
            raise TypeError("two Ragged cannot be combined: their samples may differ in length; combine their values")
        if isinstance(operand, np.ndarray) and isinstance(self.values, Tensor):
            operand = torch.from_numpy(operand)
        return self._with_values(operation(operand, self.values) if operand_first else operation(self.values, operand))

    __add__, __radd__ = _make_operators(operator.add)
    __sub__, __rsub__ = _make_operators(operator.sub)
    __mul__, __rmul__ = _make_operators(operator.mul)
    __truediv__, __rtruediv__ = _make_operators(operator.truediv)
    __floordiv__, __rfloordiv__ = _make_operators(operator.floordiv)
    __mod__, __rmod__ = _make_operators(operator.mod)
    __pow__, __rpow__ = _make_operators(operator.pow)
    __lt__, __gt__ = _make_operators(operator.lt)[0], _make_operators(operator.gt)[0]
    __le__, __ge__ = _make_operators(operator.le)[0], _make_operators(operator.ge)[0]
    __eq__, __ne__ = _make_operators(operator.eq)[0], _make_operators(operator.ne)[0]
    __hash__ = object.__hash__
    __array_ufunc__ = None  # an array or a number of numpy leaves operations to the methods above

    def __neg__(self) -> Ragged:
        return self._with_values(-self.values)

    def __abs__(self) -> Ragged:
        return self._with_values(abs(self.values))

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of `values`."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Return the device of `values`."""
        return self.values.device

    def to(self, *args: Any, **kwargs: Any) -> Ragged:
        """Return it with `values` and `offsets` moved as by `Tensor.to`; a dtype changes that of `values` alone."""
        values = self.values.to(*args, **kwargs)
        return Ragged(values, self.offsets.to(values.device, non_blocking=kwargs.get("non_blocking", False)))

    def pin_memory(self) -> Ragged:
        """Return it in page-locked memory."""
        return Ragged(self.values.pin_memory(), self.offsets.pin_memory())

    @property
    def lengths(self) -> Tensor:
        """Return the rows of each sample, (B,) int64."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def ptr(self) -> Tensor:
        """Return `offsets`, (B + 1,) int64, as PyTorch Geometric calls them."""
        return self.offsets

    @property
    def offset(self) -> Tensor:
        """Return where each sample ends, (B,) int64, as Pointcept has it: `offsets` without the 0; a view."""
        return self.offsets[1:]

    @property
    def batch_size(self) -> int:
        """Return the number of samples of the batch."""
        return len(self.offsets) - 1

    def batch_index(self) -> Tensor:
        """Return which sample of the batch each row is of, (sum of n_i,) int64, as PyTorch Geometric's `batch`."""
        numbers = torch.arange(self.batch_size, device=self.offsets.device)
        return numbers.repeat_interleave(self.lengths, output_size=len(self.values))

    def cells(self, size: float) -> Tensor:
        """Return the cell of a grid that each point lies in, (sum of n_i, 3) int32, counted from 0 in each sample.

        As Pointcept's `GridSample`: floor(x / size), worked out in float64, less the lowest cell of the cloud, axis by
        axis. Points chosen by `VoxelSample(size)` have the same cells as in the whole cloud.

        Args:
            size: edge of a cell, in the unit of the coordinates, which are the first three columns.

        Raises:
            UsageError: a point lies in no cell that int32 counts: NaN, infinite or too far away.
        """
        cells = (self.values[:, :3].double() / size).floor()
        sample = self.batch_index()
        lowest = cells.new_full((len(self), 3), math.inf)
        cells -= lowest.scatter_reduce(0, sample[:, None].expand_as(cells), cells, "amin")[sample]
        if not (cells < 2**31).all():
            raise UsageError(f"cells: a point lies in no cell of size {size}: NaN, infinite or too far away")
        return cells.int()

    def to_list(self) -> list[Tensor]:
        """Return one tensor a sample, views of `values`."""
        return [self.values[a:b] for a, b in itertools.pairwise(self.offsets.tolist())]

    def to_padded(self, fill: complex = 0) -> Tensor:
        """Return (B, longest, ...), with `fill` after the rows of the shorter samples."""
        lengths = self.lengths
        longest = int(lengths.max()) if len(lengths) else 0
        padded = self.values.new_full((len(lengths), longest, *self.values.shape[1:]), fill)
        inside = torch.arange(longest, device=lengths.device) < lengths[:, None]
        plain = SIGNED.get(self.values.dtype, self.values.dtype)
        padded.view(plain)[inside] = self.values.view(plain)
        return padded

    def to_nested(self) -> Tensor:
        """Return a nested tensor of layout `torch.jagged`, sharing `values`."""
        return torch.nested.nested_tensor_from_jagged(self.values, self.offsets)

    def float(self) -> Ragged:
        """Return it with `values` as float32."""
        return self._with_values(self.values.float())


pytree.register_pytree_node(
    Ragged,
    lambda ragged: ([ragged.values, ragged.offsets], None),
    lambda parts, _: Ragged(*parts),
    serialized_type_name="readers.Ragged",
)


class SharedTensors(list[torch.Tensor]):
    """Tensors of one storage and dtype, pickled as one; becomes a plain list on the other side.

    torch would send a file descriptor with every tensor.
    """

    def __reduce__(self) -> Any:
        # A transform may have put others in.
        storages = {(tensor.untyped_storage().data_ptr(), tensor.dtype) for tensor in self}
        if len(storages) != 1:
            return list, (list(self),)
        storage = torch.empty(0, dtype=self[0].dtype, device=self[0].device).set_(self[0].untyped_storage())
        return rebuild_tensors, (storage, [(t.storage_offset(), t.shape, t.stride()) for t in self])


def rebuild_tensors(
    storage: torch.Tensor, places: Sequence[tuple[int, torch.Size, tuple[int, ...]]]
) -> list[torch.Tensor]:
    """Return the tensors of a storage that have these offsets, shapes and strides."""
    return [storage.as_strided(shape, strides, offset) for offset, shape, strides in places]


class Origin(NamedTuple):
    """The gathered batch and the place in it that an item was made from.

    It does not refer to the `Batch`, which refers to its items: such a cycle would keep the batch's memory for long.

    Attributes:
        gathered: the whole batch.
        size: items of that batch.
        number: which of them it is.
        leaves, tree: its contents when it was made, as `_flatten` gives them.
    """

    gathered: Any
    size: int
    number: int
    leaves: list[Any]
    tree: Any


class Sample(dict[str, Any]):
    """One sample of a batch, field name to tensor, which knows its batch if it is as it was gathered."""

    origin: Origin | None = None

    def __reduce__(self) -> tuple[type[Any], tuple[Any]]:
        # Alone it is a plain dict; with its batch it would carry all the others through the pipe of a worker.
        return dict, (dict(self),)


class SampleTuple(tuple[Any, ...]):
    """What a transform returned for one sample, which `default_collate` joins by `join`; elsewhere a plain tuple."""

    __slots__ = ()

    def __reduce__(self) -> tuple[type[Any], tuple[Any]]:
        return tuple, (tuple(self),)


class SampleList(list[Any]):
    """The same of a list."""

    def __reduce__(self) -> tuple[type[Any], tuple[Any]]:
        return list, (list(self),)


class SampleTensor(torch.Tensor):
    """The same of a tensor."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # results are plain tensors


class Several(list[Any]):
    """Samples that `sample_transform` made of one. A batch holds each; `default_collate` joins them all."""


class Batch(Sequence[Any]):
    """The items of one batch, gathered in one go.

    Args:
        gathered: the whole batch: mapping of field to tensor, `Ragged`, or list; or what a transform returned for it.
        size: number of samples.
    """

    def __init__(self, gathered: Any, size: int) -> None:
        self.gathered = gathered
        self._size = size
        self._items: dict[int, Any] = {}

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._size))]
        number = index + self._size if index < 0 else index
        if not 0 <= number < self._size:
            raise IndexError(f"item {index} of a batch of {self._size}")
        # Kept, so that changes to an item are still there when it is asked for again.
        item = self._items.get(number)
        if item is None:
            item = self._items[number] = _item(self.gathered, self._size, number)
        return item

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(self._size))

    def is_as_gathered(self) -> bool:
        """Return whether the items handed out are unchanged."""
        return all(map(_is_unchanged, self._items.values()))


def batch_of(gathered: Any, size: int) -> Sequence[Any]:
    """Return a batch for torch's `DataLoader`: a `Batch`, or a list of items, which torch joins one by one.

    It is a list if a transform returned something other than a dict.

    Raises:
        UsageError: the transform returned an object that has no items.
    """
    batch = Batch(gathered, size)
    if type(gathered) is dict:
        return batch
    _check_items(gathered, size)
    return list(batch)


def only_item(gathered: Any) -> Any:
    """Return the only item of what a transform returned for a batch of one.

    Raises:
        UsageError: the transform returned an object that has no items.
    """
    _check_items(gathered, 1)
    return item_of(gathered, 0, 1)


def _check_items(gathered: Any, size: int) -> None:
    if type(gathered) is dict:
        return
    for value in _parts_without_items(gathered, size):
        raise UsageError(
            f"batch_transform was given a batch of {size} and returned a {type(value).__name__}, which cannot be taken "
            "apart into samples; give PackedDataset(..., sample_transform=f) instead, where f is given one sample, or "
            "read by Loader, which hands out whatever batch_transform returned"
        )


def _parts_without_items(tree: Any, size: int) -> Iterator[Any]:
    """Yield the parts of a transform's result without an item per sample; values in a nest may be for all samples."""
    if isinstance(tree, dict | UserDict):
        tree = list(tree.values())
    if isinstance(tree, list | tuple):
        for part in tree:
            if not isinstance(part, _VALUES):
                yield from _parts_without_items(part, size)
    # Other mappings, such as a TensorDict, would come back as a dict.
    elif isinstance(tree, Mapping) or item_of(tree, 0, size) is tree:
        yield tree


def _item(gathered: Any, size: int, number: int) -> Any:
    contents = item_of(gathered, number, size)
    if type(contents) is not dict:
        return contents
    item = Sample(contents)
    item.origin = Origin(gathered, size, number, *_flatten(contents))
    return item


def _flatten(contents: dict[str, Any]) -> tuple[list[Any], Any]:
    """Return what torch's pytree does: the leaves, and what tells how they lie; without it if none holds others."""
    if all(type(value) in (torch.Tensor, str) for value in contents.values()):
        return list(contents.values()), list(contents)
    return pytree.tree_flatten(contents)


def _is_unchanged(item: Any) -> bool:
    """Return whether an item holds the very objects that it was made with; an equal copy counts as a change."""
    leaves, tree = _flatten(dict(item))
    assert item.origin is not None, "items of a batch know it"
    same: bool = tree == item.origin.tree and all(map(is_, leaves, item.origin.leaves))
    return same


def item_of(tree: Any, number: int, size: int) -> Any:
    """Return item `number` of everything in `tree` that holds `size` items, and the rest as it is.

    A list within a dict, tuple or list holds an item a sample if its length is `size`; any other is a part of the tree.
    """
    if isinstance(tree, list):
        return [_part_of(part, number, size) for part in tree]
    return _part_of(tree, number, size)


def items_of(batch: dict[str, Any], size: int) -> list[dict[str, Any]]:
    """Return all items of a gathered batch, as `item_of` does; a tensor is cut by one call, which takes a fifth."""
    columns = {
        name: values.unbind()
        if type(values) is torch.Tensor and values.ndim and len(values) == size
        else [_part_of(values, number, size) for number in range(size)]
        for name, values in batch.items()
    }
    return [{name: column[number] for name, column in columns.items()} for number in range(size)]


def _part_of(tree: Any, number: int, size: int) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree[number] if tree.ndim and tree.shape[0] == size else tree
    if isinstance(tree, Ragged):
        start, stop = tree.offsets[number : number + 2].tolist()
        return tree.values[start:stop]
    if isinstance(tree, (dict, Mapping)):  # dict first: to ask for Mapping takes long
        return {key: _part_of(value, number, size) for key, value in tree.items()}
    if isinstance(tree, list):
        return tree[number] if len(tree) == size else item_of(tree, number, size)
    if isinstance(tree, tuple):
        parts = [_part_of(part, number, size) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    if isinstance(tree, np.ndarray):
        return tree[number] if tree.ndim and len(tree) == size else tree
    return tree


def collate_samples(
    samples: Sequence[Any],
    *,
    collate_fn_map: dict[type | tuple[type, ...], Callable[..., Any]] | None = None,
) -> Any:
    """Return the gathered batch if the samples are all of its items, unchanged; else collate them as torch does."""
    if isinstance(samples, Batch):
        if samples.is_as_gathered():
            return samples.gathered
    else:
        origin = samples[0].origin if isinstance(samples[0], Sample) else None
        if origin is not None and _are_whole_batch(samples, origin):
            return origin.gathered
    return join([_PLAIN.get(type(s), lambda same: same)(s) for s in flatten_results(samples)], collate_fn_map)


#: Samples as callers know them.
_PLAIN: dict[type, Callable[[Any], Any]] = {
    Sample: dict,
    SampleTuple: tuple,
    SampleList: list,
    SampleTensor: lambda tensor: tensor.as_subclass(torch.Tensor),
}


def as_sample(result: Any) -> Any:
    """Return what a transform returned for a sample, known to `default_collate` as a sample of ours."""
    if type(result) is dict:
        return Sample(result)
    if type(result) in (tuple, list):
        return SampleTuple(result) if type(result) is tuple else SampleList(result)
    return result.as_subclass(SampleTensor) if type(result) is torch.Tensor else result


def as_result(result: Any) -> Any:
    """Return what a transform returned for a sample: a list of mappings as `Several` samples, others as they are."""
    is_several = type(result) is list and all(isinstance(entry, Mapping) for entry in result)
    return Several(result) if is_several else result


def flatten_results(results: Sequence[Any]) -> list[Any]:
    """Return the samples of a batch from what was returned for each, of which some may be `Several`.

    Raises:
        UsageError: there are none.
    """
    samples = [sample for result in results for sample in (result if isinstance(result, Several) else (result,))]
    if not samples:
        raise UsageError("sample_transform: it returned an empty list for every sample of a batch")
    return samples


def join(samples: Sequence[Any], collate_fn_map: Mapping[Any, Callable[..., Any]] | None = None) -> Any:
    """Return samples as a batch, as torch's `default_collate` does; tensors of different shapes as whole samples are.

    That is a `Ragged` if they differ in their first axis alone, else a list.

    Raises:
        UsageError: tensors differ in the number of their axes.
    """
    return collate(list(samples), collate_fn_map={**(collate_fn_map or default_collate_fn_map), Tensor: _stack})


def _stack(tensors: Sequence[Tensor], *, collate_fn_map: Any = None) -> Any:
    """Return the tensors of all samples as one; `Ragged` if they differ in their first axis alone, else a list."""
    shapes = {tensor.shape for tensor in tensors}
    if len(shapes) == 1:
        return default_collate_fn_map[Tensor](tensors, collate_fn_map=collate_fn_map)
    if len({len(shape) for shape in shapes}) > 1:
        shape, other_shape, *_ = sorted(map(list, shapes), key=len)
        raise UsageError(
            f"sample_transform: tensors of shapes {shape} and {other_shape} make no batch: as many axes are expected "
            "of all samples"
        )
    if len({shape[1:] for shape in shapes}) > 1:
        return list(tensors)
    lengths = torch.tensor([0, *map(len, tensors)], device=CPU)
    return Ragged(torch.cat(list(tensors)), lengths.cumsum(0))


def _are_whole_batch(samples: Sequence[Any], first: Origin) -> bool:
    """Return whether these are all items of the batch of the first one, in order and as they were made."""
    if len(samples) != first.size:
        return False
    gathered = first.gathered
    for number, sample in enumerate(samples):
        origin = getattr(sample, "origin", None)
        if origin is None or origin.gathered is not gathered or origin.number != number or not _is_unchanged(sample):
            return False
    return True


for kind in (Several, *_PLAIN):
    default_collate_fn_map[kind] = collate_samples


# ---------------------------------------------------------------- torchvision


def as_tv_tensors(batch: Mapping[str, Any], masks: Collection[str] = ()) -> dict[str, Any]:
    """Return a batch or a sample whose images are `tv_tensors.Image`, and some fields `tv_tensors.Mask`; no copies.

    Transforms of `torchvision.transforms.v2` change all of these alike, with one draw. Of a plain dict they take the
    first tensor for the image, and leave the others as they are.

        batch_transform=lambda batch: flip(as_tv_tensors(batch, masks=("label",)))              # one draw a batch
        sample_transform=lambda sample: flip(as_tv_tensors(sample, masks=("label",)))     # one draw a sample

    Images are the tensors (B, C, H, W) of up to 4 channels; if there are none, as in a sample, the tensors (C, H, W).
    In a list, images are always (C, H, W). All other fields stay as they are.

    Args:
        batch: of images with their channels first, as datasets give them.
        masks: names of the fields that label each pixel, (..., H, W). They are not interpolated.

    Raises:
        UsageError: there is no such mask, or no image.
    """
    from torchvision import tv_tensors  # here: it is no dependency

    check_read("as_tv_tensors: masks", masks, batch)
    axes = 4 if any(_is_image(value, 4) for value in batch.values()) else 3
    images = 0

    def with_type(name: str, value: Any, axes: int) -> Any:
        nonlocal images
        if isinstance(value, list):
            return [with_type(name, image, 3) for image in value]
        if name in masks:
            return tv_tensors.Mask(value)
        if not _is_image(value, axes):
            return value
        images += 1
        return tv_tensors.Image(value)

    typed_batch = {name: with_type(name, value, axes) for name, value in batch.items()}
    if not images:
        shapes = ", ".join(f"{name} {list(getattr(value, 'shape', ()))}" for name, value in batch.items())
        raise UsageError(
            f"as_tv_tensors: no field is an image, (B, C, H, W) or (C, H, W) of up to {CHANNELS} channels: {shapes}"
        )
    return typed_batch


def _is_image(value: Any, axes: int) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim == axes and value.shape[-3] <= CHANNELS
