"""Windows of steps: two pictures and sixteen actions of an episode, seven frames of a clip with one crop for all."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmark.inputs import episodes, png_clips
from benchmark.loops import Batches
from benchmark.measuring import Bench, Figures, checksum, epochs, files_of, row
from benchmark.store import Store
from packer.convert import convert
from packer.sources.opening import SourceOptions
from readers import Crop, Loader, PackedDataset, Windows

#: An epoch of 3,400 windows is over in a few hundredths of a second: each comes several times.
BATCH, REPEAT = 64, 4
OFFSETS = {"image": np.arange(-1, 1), "actions": np.arange(16)}
#: Two windows a batch: more of them would share frames, which are few here.
FRAMES, CROP, CLIPS = 7, 256, 2
TAKE = "np.take of the same rows in RAM"


@row("windows of episodes, 2 pictures and 16 actions, none, batch 64, Loader", TAKE, at_least=0.6, codec="none")
@row("windows of episodes, 2 pictures and 16 actions, lz4, batch 64, Loader", TAKE, at_least=0.3, codec="lz4")
def of_episodes(bench: Bench, codec: str) -> Figures:
    """Whole windows at random anchors, of pictures of 84 x 84."""
    fields, path = bench.arrays(episodes), bench.packed(episodes, codec=codec)
    dataset = PackedDataset(path, windows=Windows({name: own.tolist() for name, own in OFFSETS.items()}))
    loader = Loader(dataset, BATCH, shuffle=True, repeat=REPEAT)
    edges = fields["offsets"]
    anchors = np.concatenate([np.arange(a + 1, b - 15) for a, b in pairwise(edges)] * REPEAT)

    def taken() -> Batches:
        order = np.random.permutation(anchors)
        for at in range(0, len(order), BATCH):
            some = order[at : at + BATCH, None]
            yield [fields[name].take(some + own, axis=0) for name, own in OFFSETS.items()]

    expected = sum(map(checksum, taken()))
    ours = epochs("Loader", lambda: loader, len(anchors), expected, files_of(path))
    return bench.race(ours, epochs("np.take", taken, len(anchors), expected))


def clips_packed(path: Path, bench: Store) -> None:
    """A packed dataset of the clips."""
    convert([f"frames={bench.files(png_clips)}"], path, workers=0, source=SourceOptions(samples="folders"))


@row(
    "windows of 7 frames of 720p, one crop of 256 px, auto, Loader", "the PNG files, Pillow, and cropping", at_least=40
)
def of_clips(bench: Bench) -> Figures:
    """What video super-resolution reads."""
    folder, path = bench.files(png_clips), bench.files(clips_packed)
    dataset = PackedDataset(path, windows=Windows({"frames": range(FRAMES)}), crop=Crop(CROP, of="frames"))
    loader = Loader(dataset, CLIPS, sampler=np.random.default_rng(0).integers(0, len(dataset), 64 * CLIPS))
    clips = [sorted(clip.glob("*.png")) for clip in sorted(folder.iterdir())]

    def pillow() -> Batches:
        for number in np.random.permutation(len(clips)).tolist():
            yield np.stack([_cropped(file) for file in clips[number][:FRAMES]])

    ours = epochs("Loader", lambda: loader, len(loader.order), files=files_of(path))
    return bench.race(ours, epochs("Pillow", pillow, len(clips), files=files_of(folder)))


def _cropped(file: Path) -> NDArray[np.uint8]:
    with Image.open(file) as picture:
        return np.asarray(picture.crop((8, 8, 8 + CROP, 8 + CROP)))
