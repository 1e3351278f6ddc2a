"""Images that cannot be packed: every error says which file, why, and what to do."""

from __future__ import annotations

import pytest
from opened_sources import open_images, read_each
from picture_files import open_pairs, picture, save
from PIL import Image

from packer.errors import SourceError, UsageError


def collect():
    """A place for the errors of bad files, and the `bad` that skips."""
    errors: list[SourceError] = []
    return errors, errors.append


def test_images_of_one_field_are_of_one_kind(tmp_path):
    """Gray among RGB is the bad one, wherever it stands: the error names it and says what to do."""
    for number in range(3):
        save(tmp_path / f"{number}.png")
    save(tmp_path / "00-odd.png", picture(channels=1))
    with pytest.raises(
        SourceError, match=r"00-odd\.png: differs from most images: field x is gray uint8, not RGB uint8; .*--mode"
    ):
        open_images({"x": str(tmp_path)})


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.png", b"", r"a\.png: is empty"),
        ("a.png", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git-LFS pointer"),
        ("a.png", b"\xff\xd8\xff\xe0rest of a JPEG", "holds JPEG data, but has the suffix of a PNG"),
        ("a.jpg", b"\x89PNG\r\n\x1a\n", "holds PNG data, but has the suffix of a JPEG"),
        ("a.png", bytes(100), "begins with zeros"),
        ("a.png", b"<!DOCTYPE html>", "holds HTML data"),
        ("a.png", b"\x89PNG\n\x1a\n and so on", "signature it begins with was changed"),
        ("a.jpg", b"\xff\xd8\xff" + bytes(50), r"cannot be read as JPEG by Pillow \(.+\)"),
        ("a.tif", b"II*\0" + bytes(50), "is a TIFF without an image"),
        ("a.psd", b"8BPS", r"a\.psd: lies among images .* but is none of these"),
    ],
)
def test_bad_files_are_named_with_the_reason(tmp_path, name, content, message):
    """A file that is not what its name says stops with its name and the reason, or is skipped."""
    save(tmp_path / "good.png")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message) as caught:
        open_images({"x": str(tmp_path)})
    assert caught.value.path == f"{tmp_path}/{name}"
    errors, skip = collect()
    assert open_images({"x": str(tmp_path)}, bad=skip).names == ["good"]
    assert len(errors) == 1


@pytest.mark.parametrize("suffix", ["png", "gif", "webp"])
def test_animations_are_refused(tmp_path, suffix):
    """Files of several images are refused rather than cut to their first."""
    frames = [Image.fromarray(picture(seed=seed)) for seed in range(3)]
    frames[0].save(tmp_path / f"a.{suffix}", save_all=True, append_images=frames[1:])
    with pytest.raises(SourceError, match="animat"):
        open_images({"x": str(tmp_path)})


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_too_many_pixels_are_refused_by_the_header(tmp_path, suffix):
    """The limit of pixels is an error that says how to raise it."""
    save(tmp_path / f"a.{suffix}")
    with pytest.raises(
        SourceError, match="4 pixels, more than the limit of 19; if that is right, raise the limit with --max-pixels 20"
    ):
        open_images({"x": str(tmp_path)}, max_pixels=19)
    assert len(open_images({"x": str(tmp_path)}, max_pixels=20)) == 1


def test_a_bad_file_leaves_its_sample_out_of_every_field(pairs):
    """Skipping drops the partners of a bad file too, so that fields stay in step."""
    (pairs / "lr" / "2x2.png").write_bytes(b"")
    errors, skip = collect()
    source = open_pairs(pairs, bad=skip)
    assert source.names == ["1", "10"]
    assert len(source.files()) == 4
    assert [error.path for error in errors] == [f"{pairs}/lr/2x2.png"]


def test_orphans_are_listed(pairs):
    """The first error of missing partners lists them all; skipped, each is told by itself."""
    save(pairs / "hr" / "11.png")
    (pairs / "hr" / "2.png").unlink()
    with pytest.raises(SourceError, match=r"2 files have no partner \(lr: 2x2.png; hr: 11.png\)"):
        open_pairs(pairs)
    errors, skip = collect()
    assert open_pairs(pairs, bad=skip).names == ["1", "10"]
    assert [error.path for error in errors] == [f"{pairs}/lr/2x2.png", f"{pairs}/hr/11.png"]


def test_what_came_off_names_is_said(tmp_path):
    """The error of a missing partner says what was taken off names, so that the reader sees how far it got."""
    for name in ("lr/1x2.png", "lr/2x2.png", "lr/3.png", "hr/1.png", "hr/2.png", "hr/4.png"):
        save(tmp_path / name)
    with pytest.raises(SourceError, match=r"the part that most files of a field share \(lr: 'x2' at the end\)"):
        open_pairs(tmp_path)


@pytest.mark.parametrize("again", ["lr", "lr/", "lr/*.png", "linked"])
def test_two_fields_of_the_same_files_are_refused(pairs, again):
    """One folder named for two fields is a slip of the pen: an error of use, which skipping bad files does not hide."""
    (pairs / "linked").symlink_to(pairs / "lr")
    with pytest.raises(UsageError, match="fields 'lr' and 'hr' are the same files"):
        open_images({"lr": str(pairs / "lr"), "hr": f"{pairs}/{again}"}, bad=lambda error: None)


def test_one_file_for_each_field_is_said(pairs):
    """The plan says which files were taken for one sample although their names differ."""
    source = open_images({"lr": f"{pairs}/lr/1x2.png", "hr": f"{pairs}/hr/10.png"})
    assert source.names == ["1x2"]
    expected = "there is one file for each field: 1x2.png as lr and 10.png as hr are taken for one sample, '1x2'"
    assert expected in source.remarks


def test_two_files_of_one_name_are_an_error_that_names_both(tmp_path):
    """a.png and a.bmp cannot both be sample a."""
    save(tmp_path / "a.png")
    save(tmp_path / "a.bmp")
    with pytest.raises(SourceError, match=r"a\.png: this file and a\.bmp would both be sample 'a'"):
        open_images({"x": str(tmp_path)})


def test_no_sample_is_left(tmp_path):
    """Where every file is bad, or has no partner, there is an error although bad files are skipped."""
    (tmp_path / "b.png").symlink_to("nowhere")
    with pytest.raises(UsageError, match="none of its files can be read"):
        open_images({"x": str(tmp_path)}, bad=lambda error: None)
    for name in ("a/1.png", "a/2.png", "b/3.png"):
        save(tmp_path / name)
    with pytest.raises(SourceError, match="no sample is left"):
        open_images({"x": str(tmp_path / "a"), "y": str(tmp_path / "b")}, bad=lambda error: None)


def test_wrong_options_are_refused(tmp_path):
    """Indices cannot be converted, and bad field names are errors of use."""
    save(tmp_path / "a.png")
    with pytest.raises(UsageError, match="no colours to convert"):
        open_images({"x": str(tmp_path)}, palette="index", mode="rgb")
    with pytest.raises(UsageError, match=r"'a\\\\b': printable characters"):
        open_images({"a\\b": str(tmp_path)})


def test_reading_stops_at_damage_with_the_number_of_the_sample(pairs):
    """Samples before a damaged one are yielded; the error says which one, so that reading can go on behind it."""
    damaged = pairs / "hr" / "2.png"
    data = bytearray(damaged.read_bytes())
    data[-20] ^= 1
    damaged.write_bytes(data)
    source, blocks = open_pairs(pairs), []
    with pytest.raises(SourceError, match=r"IDAT at byte \d+ has a wrong checksum") as caught:
        blocks.extend(source.read())
    assert (caught.value.sample, caught.value.path) == (1, str(damaged))
    assert [len(block["lr"]) for block in blocks] == [1]
    assert len(read_each(source.slice(2, 3))["hr"]) == 1


def test_a_file_that_changed_since_its_header_was_read_is_an_error(pairs):
    """An image of another size, or one that has gone, is not packed in silence."""
    source = open_pairs(pairs)
    save(pairs / "lr" / "1x2.png", picture(9, 9))
    with pytest.raises(SourceError, match="was 4 x 5 x 3 uint8 when its header was read, and is 9 x 9 x 3"):
        list(source.read())
    (pairs / "lr" / "1x2.png").unlink()
    with pytest.raises(SourceError, match="cannot be read: No such file"):
        list(source.read())
