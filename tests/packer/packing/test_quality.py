"""`--codec FIELD=jpeg:90`: images and frames of clips become JPEG files, only where that is asked for, and said."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from jpeg_files import Pixels, as_jpeg, by_pillow, photograph
from video_files import video

from packer.append import append
from packer.checking import compare
from packer.codecs import codec_name
from packer.convert import ConvertOptions, convert
from packer.errors import DamagedError, UsageError
from packer.format import Shard
from packer.format import manifest as manifests
from packer.merge import merge
from packer.repack import repack
from packer.sources import open_sources
from packer.writer import DatasetWriter
from readers import PackedDataset, Windows


def by_simplejpeg(image: Any, quality: int) -> Pixels:
    """An image (H, W, C) or (H, W) as its own encoding decodes; itself where that saves less than a sixteenth."""
    if not image.size:
        return image
    if image.ndim == 2:
        return by_simplejpeg(image[:, :, None], quality)[:, :, 0]
    colours, sampling = ("GRAY", "Gray") if image.shape[2] == 1 else ("RGB", "420")
    file = simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality, colours, sampling, fastdct=False)
    return image if len(file) > image.nbytes * 15 / 16 else simplejpeg.decode_jpeg(file, colours)


def soft_clip(steps: int, first: int = 0) -> Pixels:
    return np.stack([photograph(40, 56, step) for step in range(first, first + steps)])


def photographs_panned(height: int, width: int, steps: int) -> Pixels:
    """A camera that moves over a picture without noise, (steps, height, width, 3)."""
    y, x = np.mgrid[: height + steps, : width + steps]
    scene = np.stack([128 + 100 * np.sin(x / (7 + c)) * np.cos(y / (9 + c)) for c in range(3)], 2).astype(np.uint8)
    return np.stack([scene[step : step + height, step : step + width] for step in range(steps)])


def clips_of(path: Path) -> list[Pixels]:
    return [np.asarray(sample["clip"]) for sample in PackedDataset(path)]


def steps_stored(path: Path) -> list[bytes]:
    """The stored bytes of each step of the first field, over all shards."""
    manifest, frames = manifests.read(path), list[bytes]()
    for entry in manifest.shards:
        with Shard(path / entry.file) as shard:
            column = shard.column(0, manifest.fields[0], entry.samples)
            spans = column.frames_of(np.arange(entry.samples)).spans.tolist()
            data = (path / entry.file).read_bytes()
            frames += [data[start:stop] for start, stop in spans]
    return frames


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=3),
    st.tuples(st.integers(0, 70), st.integers(4, 70), st.sampled_from([1, 3])),
    st.integers(1, 100),
)
def test_values_are_what_their_own_encoding_decodes_to(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], sides: tuple[int, int, int], quality: int
) -> None:
    """Clips and images of any size, gray with and without an axis of channels; tiny ones stay as they are."""
    path = tmp_path_factory.mktemp("quality") / "out"
    clips = [np.resize(soft_clip(max(1, t)), (t, *sides)) for t in lengths]
    images = [np.resize(photograph(60, 60), sides) for _ in lengths]
    with DatasetWriter(path, codec=f"jpeg:{quality}") as writer:
        for clip, image in zip(clips, images, strict=True):
            writer.add({"clip": clip, "stack": clip[..., 0], "image": image, "gray": image[..., 0]})
    for sample, clip, image in zip(PackedDataset(path), clips, images, strict=True):
        for name, steps in {"clip": clip, "stack": clip[..., 0]}.items():
            assert sample[name].shape == steps.shape
            assert all(np.array_equal(a, by_simplejpeg(b, quality)) for a, b in zip(sample[name], steps, strict=True))
        assert np.array_equal(sample["image"], by_simplejpeg(image, quality))
        assert np.array_equal(sample["gray"], by_simplejpeg(image[..., 0], quality))


def test_images_that_are_jpeg_files_stay_so_and_others_become_some(tmp_path: Path) -> None:
    """The manifest has the quality; the bytes of the file are kept, a PNG beside it is encoded."""
    from PIL import Image

    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jpg").write_bytes(file := as_jpeg(photograph(50, 40)))
    Image.fromarray(photograph(30, 60)).save(tmp_path / "in/b.png")
    convert(f"image={tmp_path / 'in'}", tmp_path / "out", codec="image=jpeg:80")
    (field,) = manifests.read(tmp_path / "out").fields
    assert field.codec == ({"id": "jpeg", "quality": 80},)
    assert codec_name(field.codec) == "jpeg:80"
    first, second = (sample["image"].permute(1, 2, 0).numpy() for sample in PackedDataset(tmp_path / "out"))
    assert np.array_equal(first, by_pillow(file))
    assert steps_stored(tmp_path / "out")[0] == file
    assert np.array_equal(second, by_simplejpeg(photograph(30, 60), 80))


def test_a_window_reads_only_its_own_steps(tmp_path: Path) -> None:
    """Where another step is damaged, a window is read; one that holds this step is an error."""
    with DatasetWriter(tmp_path / "out", codec="jpeg:90") as writer:
        for steps, first in ((12, 0), (9, 12)):
            writer.add({"clip": soft_clip(steps, first)})
    file = tmp_path / "out" / manifests.read(tmp_path / "out").shards[0].file
    data, step = file.read_bytes(), steps_stored(tmp_path / "out")[12 + 4]
    assert data.count(step) == 1
    dataset = PackedDataset(tmp_path / "out", windows=Windows(3))
    file.write_bytes(data.replace(step, bytes(len(step))))
    for number, step in enumerate([*range(10), *range(12, 19)]):
        if step in (14, 15, 16):
            with pytest.raises(DamagedError, match="sample 1 of the shard"):
                _ = dataset[number]
        else:
            assert np.array_equal(dataset[number]["clip"], [by_simplejpeg(image, 90) for image in soft_clip(3, step)])


@pytest.mark.parametrize("large", [False, True])
def test_verify_compares_with_what_is_encoded_again(
    tmp_path: Path, large: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A video is as it was packed, also one that is read by pieces; another one is not. How near it is, is said."""
    if large:
        monkeypatch.setattr("packer.sources.video.LARGE_BYTES", 0)
    for number, frames in enumerate((9, 12)):
        video(tmp_path / f"in/{number}.mp4", frames=frames)
    with caplog.at_level(logging.INFO):
        convert(f"clip={tmp_path / 'in'}", tmp_path / "out", ConvertOptions(codec="clip=jpeg:90", workers=0))
    assert "frames of clip become JPEG files of quality 90" in caplog.text
    assert "PSNR" in caplog.text
    same = compare(tmp_path / "out", open_sources([f"clip={tmp_path / 'in'}"]))
    assert same.damages == []
    assert any("clip is compared as jpeg:90 stores it" in note for note in same.besides)
    clip = next(iter(open_sources([f"clip={tmp_path / 'in'}"]).read()))["clip"][0]
    assert np.array_equal(clips_of(tmp_path / "out")[0], [by_simplejpeg(image, 90) for image in clip[:]])
    video(tmp_path / "in/1.mp4", frames=12, crf="40")
    (damage,) = compare(tmp_path / "out", open_sources([f"clip={tmp_path / 'in'}"])).damages
    assert damage.samples == (1, 2)


@pytest.mark.parametrize(("lengths", "axes"), [((4, 4, 4), 4), ((1, 5, 3), 4), ((2, 3), 3)])
def test_packing_again_encodes_nothing_anew(
    tmp_path: Path, lengths: tuple[int, ...], axes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """repack, merge and append keep the files of steps, of clips of one length and of several, and of gray stacks."""
    samples = [{"clip": soft_clip(steps)[(...,) if axes == 4 else (..., 0)]} for steps in lengths]
    convert(samples, tmp_path / "a", codec="jpeg:60")
    files = steps_stored(tmp_path / "a")
    repack(tmp_path / "a", tmp_path / "b", seed=3)
    assert sorted(steps_stored(tmp_path / "b")) == sorted(files)
    repack(tmp_path / "a", tmp_path / "auto", codec="auto")
    assert codec_name(manifests.read(tmp_path / "auto").fields[0].codec) == "jpeg"
    assert steps_stored(tmp_path / "auto") == files
    repack(tmp_path / "a", tmp_path / "pixels", codec="lz4")
    for ours, theirs in zip(clips_of(tmp_path / "pixels"), clips_of(tmp_path / "a"), strict=True):
        assert np.array_equal(ours, theirs)
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    assert sorted(steps_stored(tmp_path / "merged")) == sorted(2 * files)
    with pytest.raises(UsageError, match="'clip' is packed as jpeg:60, and stays so; for jpeg:50 convert"):
        repack(tmp_path / "a", tmp_path / "c", codec="clip=jpeg:50")
    append(tmp_path / "a", samples[:1])
    assert steps_stored(tmp_path / "a") == files + files[: lengths[0]]


def test_a_codec_that_keeps_files_says_where_there_are_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`jpeg` without a quality leaves frames as they are."""
    with caplog.at_level(logging.INFO):
        convert([{"clip": soft_clip(3)}], tmp_path / "out", codec="jpeg")
    assert "3 of 3 frames of clip that were looked at are no JPEG files, and stay pixels" in caplog.text
    assert np.array_equal(clips_of(tmp_path / "out")[0], soft_clip(3))


@pytest.mark.parametrize(
    ("value", "codec", "words"),
    [
        (np.zeros((2, 4, 4, 3), np.float32), "jpeg:90", "jpeg is for images .* not array float32"),
        (
            np.zeros((2, 4, 4, 4), np.uint8),
            "jpeg:90",
            r"jpeg is for images .* not array uint8 \[2, 4, 4, 4\]",
        ),
        (np.zeros((4, 3), np.uint8), "jpeg:90", "jpeg is for images"),
        (np.zeros((2, 4, 4, 3), np.uint8), "jpeg:0", "a quality from 1 to 100 is expected, as in jpeg:90"),
        (np.zeros((2, 4, 4, 3), np.uint8), "jpeg:best", "a quality from 1 to 100"),
        (np.zeros((2, 4, 4, 3), np.uint8), '{"id": "jpeg", "quality": 101}', "cannot be used"),
        (np.zeros((4, 4, 3), np.uint8), "h264:18", r"h264 is for clips \(T, H, W, 3\) of uint8, not array uint8"),
        (np.zeros((2, 4, 4, 3), np.uint8), "h264:52", "a rate factor of x264 from 1 to 51 is expected, as in h264:18"),
        (np.zeros((1, 1, 70000, 3), np.uint8), "jpeg:90", "1 x 70000 pixels; a JPEG file holds 65500 a side"),
    ],
)
def test_what_no_jpeg_file_holds_is_refused(tmp_path: Path, value: Any, codec: str, words: str) -> None:
    """In one sentence, before anything is packed."""
    with pytest.raises(UsageError, match=words):
        convert([{"x": value}], tmp_path / "out", codec=codec)


@pytest.mark.parametrize("sides", [(40, 56), (41, 65)])  # FFmpeg decodes rows of 64 and of 128 pixels
def test_groups_of_h264_are_as_they_were_encoded(tmp_path: Path, sides: tuple[int, int]) -> None:
    """Windows decode their own groups; verify encodes again; repack, merge and append encode nothing anew."""
    clips = [photographs_panned(*sides, steps) for steps in (30, 5)]
    convert([{"clip": clip} for clip in clips], tmp_path / "a", codec="h264:18")
    (field,) = manifests.read(tmp_path / "a").fields
    assert (codec_name(field.codec), field.frame.rows) == ("h264:18", 8)
    stored, groups = clips_of(tmp_path / "a"), steps_stored(tmp_path / "a")
    assert len(groups) == 4 + 1
    assert sum(map(len, groups)) < sum(clip.nbytes for clip in clips) / 8
    for ours, clip in zip(stored, clips, strict=True):
        assert ours.shape == clip.shape
        assert np.square(ours.astype(float) - clip).mean() < 255**2 / 10**3.2  # 32 dB
    windows = PackedDataset(tmp_path / "a", windows=Windows(5))
    for start in (0, 9, 10, 25):
        assert np.array_equal(windows[start]["clip"], stored[0][start : start + 5])
    convert([{"clip": clip} for clip in clips], tmp_path / "again", codec="h264:18")
    assert steps_stored(tmp_path / "again") == groups
    repack(tmp_path / "a", tmp_path / "b", seed=3)
    assert sorted(steps_stored(tmp_path / "b")) == sorted(groups)
    merge([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    assert sorted(steps_stored(tmp_path / "merged")) == sorted(2 * groups)
    repack(tmp_path / "a", tmp_path / "pixels", codec="lz4")
    assert all(map(np.array_equal, clips_of(tmp_path / "pixels"), stored))
    with pytest.raises(UsageError, match=r"'clip' is packed as h264:18, and stays so; for h264:30 convert"):
        repack(tmp_path / "a", tmp_path / "c", codec="clip=h264:30")
    append(tmp_path / "a", [{"clip": clip} for clip in clips[:1]])
    assert steps_stored(tmp_path / "a") == groups + groups[:4]
    file = tmp_path / "b" / manifests.read(tmp_path / "b").shards[0].file
    file.write_bytes(file.read_bytes().replace(groups[1], groups[1][: len(groups[1]) // 2].ljust(len(groups[1]), b"x")))
    with pytest.raises(DamagedError, match="field 'clip', sample"):
        clips_of(tmp_path / "b")
