"""Videos (`.mp4`, `.mkv`, ...) as samples, read by PyAV: one field a source, one sample a file, (T, H, W, 3) uint8.

    packer convert clip=UCF101 ucf101.packed --label folder --short 128

Two more fields say when frames are shown: `time`, (T,) float64, the presentation time of each frame in seconds, and
`fps`, float64, how many frames are packed for a second. With several sources they are called `FIELD.time`, `FIELD.fps`.
The plan comes from the packets of a file, which are listed and not decoded; one frame shows which way up they are.
A frame is what FFmpeg's software decoders give, converted to RGB by its swscale as PyAV does. A file with a frame that
cannot be decoded is bad; damage that the decoder does not notice cannot be seen, as videos have no checksums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from packer.errors import SourceError, UsageError
from packer.sources.base import LARGE_BYTES, LargeArray
from packer.sources.ends import bytes_after, bytes_missing
from packer.sources.files import FileSet, open_raw, unreadable
from packer.sources.kinds import Kind, pair_by_name
from packer.sources.looking import AFTER, Header
from packer.sources.options import SourceOptions
from packer.sources.table import LaidField, Row, SampleTable
from packer.watcher import Watcher

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

#: Any error is raised: by default, FFmpeg guesses what is missing.
_STRICT = {"err_detect": "crccheck+bitstream+buffer+explode"}
#: A file that ends so much earlier than its header says is cut.
_CUT_SECONDS = 0.5
#: Bytes that may be missing: some writers count the header of a file twice.
_SLACK = 16
_ADVICE = "encode it again with ffmpeg, or move it away"
#: How a frame begins in MPEG-4 part 2. Old DivX and XviD packed two into one piece, which FFmpeg shows at wrong times.
_FRAME_OF_MPEG4 = b"\0\0\1\xb6"
_PACKED = (
    "has packed B-frames, as old DivX and XviD wrote them: ffmpeg -i OLD -c copy -bsf:v mpeg4_unpack_bframes NEW "
    "unpacks them, or encode it again (-c:v libx264), or move it away"
)


class Video(NamedTuple):
    """What the packets of a file say of its frames, in the order in which they are shown.

    Attributes:
        shown: (n,) int64 presentation times, in units of `unit` seconds.
        keys: (k,) int64 those of frames from which decoding can begin.
        rate: frames a second, on average.
        cut_off: how many more frames are shown before the first of `keys`, and refer to others that the file lacks.
    """

    shown: NDArray[np.int64]
    keys: NDArray[np.int64]
    unit: Fraction
    rate: float
    cut_off: int

    @property
    def times(self) -> NDArray[np.float64]:
        """Return the presentation times in seconds, (n,)."""
        return self.shown * self.unit.numerator / self.unit.denominator


def pair(file_sets: Mapping[str, FileSet], options: SourceOptions, watcher: Watcher) -> tuple[SampleTable, list[str]]:
    """Return the samples that videos of the fields make, as `pair_by_name` does."""
    if options.every is not None and options.fps is not None:
        raise UsageError("--every and --fps both choose frames; give one of them")
    if options.size is not None and options.short is not None:
        raise UsageError("--size and --short both choose the size of frames; give one of them")
    for flag, value in (("--fps", options.fps), ("--stop", options.stop)):
        if value is not None and not value > 0:
            raise UsageError(f"{flag} {value:g}: more than 0 is expected")
    sides_of(options, 1, 1)
    return pair_by_name(file_sets, options, watcher)


# ---------------------------------------------------------------- headers


def look(row: Row, options: SourceOptions) -> Header:
    """Return the fields of a sample, and how many frames of which size each file gives."""
    layout, numbers = [], dict[str, int]()
    for field, (path,) in row.paths.items():
        video, first, notes = look_at(path)
        frames = len(_chosen(video, options, path))
        height, width = sides_of(options, *turned_sides(first))
        numbers |= {f"{field}.frames": frames, f"{field}.height": height, f"{field}.width": width}
        steps, prefix = f"{field}.frames", f"{field}." if len(row.paths) > 1 else ""
        with open_raw(path) as file:
            extra = bytes_after(file)
        numbers |= {AFTER.format(field): extra} if extra else {}
        shape = (steps, f"{field}.height", f"{field}.width", 3)
        layout += [
            LaidField(field, "uint8", shape, "frames in colour", notes=notes),
            LaidField(f"{prefix}time", "float64", (steps,), "times of frames"),
            LaidField(f"{prefix}fps", "float64", (), "frames a second"),
        ]
    return Header(tuple(layout), numbers)


def look_at(path: str) -> tuple[Video, VideoFrame, tuple[str, ...]]:
    """Return what the packets of a file say, its first frame, and sentences on what is not packed as it is."""
    with _opened(path) as (container, stream):
        first: list[VideoFrame] = []
        video = _demux(container, stream, path, first)
        notes = []
        (frame,) = first
        name = frame.format.name
        if name.startswith(("yuva", "rgba", "bgra", "argb", "abgr", "gbrap", "ya")) or (
            stream.metadata.get("alpha_mode", "0") != "0"
        ):
            raise SourceError(f"has an alpha channel ({name}), which is not packed; {_ADVICE} (-pix_fmt yuv420p)", path)
        if not _is_turned_by_quarters(frame):
            how = "mirrored, or turned by less than a quarter"
            raise SourceError(f"is to be shown {how}, as its header says, which is not done; {_ADVICE}", path)
        if any(component.bits > 8 for component in frame.format.components):
            notes.append("its frames have more than 8 bits a value, and become uint8")
        if frame.rotation:
            notes.append("its frames are turned as its header says")
        if frame.interlaced_frame:
            notes.append("its frames are interlaced, two fields each, and stay so")
        if stream.sample_aspect_ratio not in (None, 0, 1):
            notes.append("its pixels are not square, and stay so")
        if video.cut_off:
            notes.append("its first frames refer to others that were cut off, and are left out")
        if container.streams.audio:
            notes.append("its sound is not packed")
        return video, frame, tuple(notes)


def _is_turned_by_quarters(frame: VideoFrame) -> bool:
    """Return whether a frame is shown as it is, or turned, and not mirrored: a rotation does not tell these apart."""
    matrix: Any = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return True
    a, b, _, c, d = map(int, np.frombuffer(bytes(matrix), np.int32)[:5])
    return (b == c == 0 and a * d > 0) or (a == d == 0 and b * c < 0)


def _demux(container: InputContainer, stream: VideoStream, path: str, first: list[VideoFrame] | None = None) -> Video:
    """Return what all packets of a file say; the first frame is added to `first`."""
    rate, unit = stream.average_rate or stream.guessed_rate, stream.time_base
    if not rate or not unit:
        raise SourceError(f"has no frame rate; {_ADVICE}", path)
    shown, keys, cut_off, end = list[int](), list[int](), 0, 0.0
    for packet in container.demux():
        if packet.pts is not None and packet.time_base:
            end = max(end, float((packet.pts + (packet.duration or 0)) * packet.time_base))
        if packet.stream != stream:
            continue
        if packet.pts is not None and packet.is_keyframe:
            keys.append(packet.pts)
        is_cut_off = packet.pts is not None and (not keys or packet.pts < keys[0])
        if first is not None and not first and not is_cut_off:  # few frames come when the last packet, empty, flushes
            first += cast("list[VideoFrame]", packet.decode())[:1]
        if not packet.size or packet.is_discard or _is_hidden(packet):
            continue
        if stream.codec_context.name == "mpeg4" and bytes(packet).count(_FRAME_OF_MPEG4) > 1:
            raise SourceError(_PACKED, path)
        if packet.pts is None:
            raise SourceError(f"does not say when its frames are shown; {_ADVICE} (as .mp4)", path)
        if is_cut_off:
            cut_off += 1
        else:
            shown.append(packet.pts)
    if not shown:
        raise SourceError(f"holds no frame; {_ADVICE}", path)
    if first is not None and not first:
        raise SourceError(f"none of its {len(shown):,} frames can be decoded; {_ADVICE}", path)
    video = Video(np.sort(np.array(shown, np.int64)), np.sort(np.array(keys, np.int64)), unit, float(rate), cut_off)
    if (np.diff(video.shown) == 0).any():
        raise SourceError(f"shows two frames at one time; {_ADVICE}", path)
    begin = 0 if "matroska" in container.format.name else container.start_time or 0  # which its length includes
    length = ((container.duration or 0) + begin) / 1e6
    if end < length - _CUT_SECONDS:
        raise SourceError(f"ends after {end:.1f} s, and says that it is {length:.1f} s long; download it again", path)
    return video


def _is_hidden(packet: Packet[Any]) -> bool:
    """Return whether a packet holds a frame that is never shown, to which others refer (RFC 6386, section 9.1)."""
    return packet.stream.codec_context.name == "vp8" and not bytes(packet)[0] & 0x10


def _chosen(video: Video, options: SourceOptions, path: str) -> NDArray[np.int64]:
    """Return the numbers of the frames that are packed, ascending; a frame may be there twice with `--fps`."""
    times = video.times
    start, stop = options.start or 0.0, np.inf if options.stop is None else options.stop
    numbers = np.flatnonzero((times >= (times[0] if options.start is None else start)) & (times < stop))
    if not len(numbers):
        spans = f"{times[0]:g} to {times[-1]:g} s"
        raise SourceError(f"has no frame from {start:g} to {stop:g} s, only from {spans}; move it away", path)
    if options.fps is not None:
        taken = times[numbers]
        length = taken[-1] - taken[0] + 1 / video.rate
        wanted = taken[0] + np.arange(max(1, round(length * options.fps))) / options.fps
        after = np.searchsorted(taken, wanted).clip(1, max(1, len(taken) - 1)).clip(0, len(taken) - 1)
        before = (after - 1).clip(0)
        numbers = numbers[np.where(wanted - taken[before] <= taken[after] - wanted, before, after)]
    return numbers[:: options.every or 1]


def _rate(video: Video, options: SourceOptions) -> float:
    return (options.fps or video.rate) / (options.every or 1)


def turned_sides(frame: VideoFrame) -> tuple[int, int]:
    sides = frame.height, frame.width
    return sides if frame.rotation % 180 == 0 else sides[::-1]


def sides_of(options: SourceOptions, height: int, width: int) -> tuple[int, int]:
    """Return height and width of frames as they are packed.

    Raises:
        UsageError: `--size` is not two numbers.
    """
    if options.short is not None:
        scale = options.short / min(height, width)
        return (options.short, round(width * scale)) if height <= width else (round(height * scale), options.short)
    if options.size is None:
        return height, width
    sides = options.size.split(",")
    if len(sides) != 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise UsageError(f"--size {options.size}: HEIGHT,WIDTH in pixels is expected, as in 240,320")
    return int(sides[0]), int(sides[1])


def agree(table: SampleTable, options: SourceOptions, remarks: list[str], watcher: Watcher) -> SampleTable:
    """Return all samples; an axis that is equal in all of them is of fixed length, but for the frames."""
    if options.size is not None or options.short is not None:
        remarks.append("frames are resized by FFmpeg's swscale: by area where they get smaller, else bicubic")
    fixed = {
        name: int(column[0])
        for name, column in table.numbers.items()
        if table.count and not name.endswith(".frames") and (column == column[0]).all()
    }
    return table.relaid(lambda laid: laid._replace(shape=tuple(fixed.get(str(axis), axis) for axis in laid.shape)))


# ---------------------------------------------------------------- frames


def read(row: Row, options: SourceOptions) -> dict[str, Any]:
    """Return the frames of each file, those of a large one as `LargeArray`, and when they are shown."""
    sample: dict[str, Any] = {}
    layouts = iter(row.layout)
    for field, (path,) in row.paths.items():
        clip, time, fps = next(layouts), next(layouts), next(layouts)
        with _opened(path) as (container, stream):
            video = _demux(container, stream, path)
        frames = Frames(path, video, _chosen(video, options, path), options)
        shape = tuple(int(n or 0) for n in row.shape(clip))
        if len(frames.numbers) != shape[0]:
            now = f"{len(frames.numbers):,} now"
            raise SourceError(f"had {shape[0]:,} frames when its header was read, and has {now}; run again", path)
        array = LargeArray(np.dtype(np.uint8), shape, frames.read, path)
        sample[field] = array if array.nbytes > LARGE_BYTES else array[:]
        sample[time.name] = frames.video.times[frames.numbers]
        sample[fps.name] = np.float64(_rate(frames.video, options))
    return sample


class Frames:
    """Some frames of a file, decoded on from the last ones that were asked for, or from a key frame.

    Args:
        numbers: of the frames, ascending, (n,).
        options: which say how large they become.
    """

    def __init__(self, path: str, video: Video, numbers: NDArray[np.int64], options: SourceOptions) -> None:
        from av.video.reformatter import VideoReformatter

        self.video, self.numbers = video, numbers
        self._path, self._options = path, options
        self._reformatter = VideoReformatter()
        self._decoded: Iterator[tuple[int, VideoFrame]] = iter(())
        self._last: tuple[int, NDArray[np.uint8]] | None = None

    def read(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Return the frames start..stop, counted among these, (stop - start, H, W, 3)."""
        frames = [self._frame(int(self.video.shown[number])) for number in self.numbers[start:stop]]
        if any(frame.shape != frames[0].shape for frame in frames):
            raise SourceError(f"its frames change their size; {_ADVICE}", self._path)
        return np.stack(frames)

    def _frame(self, shown: int) -> NDArray[np.uint8]:
        """Return the frame that is shown at a time, in units of the file."""
        if self._last is None or shown != self._last[0]:
            keys = self.video.keys
            begin = int(keys[: max(1, int(keys.searchsorted(shown, "right")))][-1])
            if not self._comes_next(shown):
                self._decoded = self._from(begin)
            try:
                self._decode_to(shown)
            except SourceError:
                if begin == keys[0]:
                    raise
                # In some streams, frames refer to others before their key frame.
                self._decoded = self._from(int(keys[0]))
                self._decode_to(shown)
        assert self._last is not None, "a frame was decoded"
        return self._last[1]

    def _decode_to(self, shown: int) -> None:
        """Decode on until a frame is shown, which becomes the last one.

        Raises:
            SourceError: it does not come.
        """
        for at, frame in self._decoded:
            if at == shown:
                self._last = at, self._pixels(frame)
                return
            if at > shown:
                break
        seconds = float(shown * self.video.unit)
        raise SourceError(f"its frame at {seconds:.3f} s cannot be decoded; {_ADVICE}", self._path)

    def _comes_next(self, shown: int) -> bool:
        """Return whether to decode on, since there is no key frame between the next frame and the one shown then."""
        if self._last is None or shown < self._last[0]:
            return False
        first, stop = self.video.shown.searchsorted([self._last[0], shown], "right")
        following = self.video.shown[first:stop]
        return not np.isin(following[1:], self.video.keys).any()

    def _from(self, begin: int) -> Iterator[tuple[int, VideoFrame]]:
        """Yield frames with the time at which each is shown, from a key frame on.

        Frames that are decoded after the key frame, and shown before it, refer to others before it.
        """
        with _opened(self._path) as (container, stream):
            if begin != self.video.keys[0]:
                container.seek(begin, stream=stream)
            for packet in container.demux(stream):
                if packet.pts is not None and packet.pts < begin:
                    continue
                for frame in packet.decode():
                    if frame.is_corrupt:
                        raise SourceError(f"its frame at {frame.time:.3f} s is damaged; {_ADVICE}", self._path)
                    if frame.pts is not None:
                        yield frame.pts, frame

    def _pixels(self, frame: VideoFrame) -> NDArray[np.uint8]:
        turns = frame.rotation // 90
        height, width = sides_of(self._options, *turned_sides(frame))
        if turns % 2:
            height, width = width, height
        is_smaller = height <= frame.height and width <= frame.width
        # In one thread: threads of swscale do not live on in a forked process, which waits for them for ever.
        rgb = self._reformatter.reformat(
            frame, width, height, "rgb24", interpolation="AREA" if is_smaller else "BICUBIC", threads=1
        )
        pixels: Any = rgb.to_ndarray()
        return np.ascontiguousarray(np.rot90(pixels, turns)) if turns else pixels


@contextmanager
def _opened(path: str) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open a file, and its one stream of video; errors of FFmpeg become a SourceError."""
    import av

    try:
        with open_raw(path) as file:  # FFmpeg calls damage an error of the disk, too
            missing = bytes_missing(file)
    except OSError as error:
        raise unreadable(error, path) from error
    if missing > _SLACK:
        raise SourceError(f"lacks its last {missing:,} bytes, as its header says; download it again", path)
    try:
        with av.open(path, metadata_errors="replace") as container:
            streams = [s for s in container.streams.video if not s.disposition & av.stream.Disposition.attached_pic]
            if len(streams) != 1:
                counted = f"{len(streams)} streams of video" if streams else "no stream of video"
                raise SourceError(f"has {counted}, and one is expected; {_ADVICE} (-map 0:v:0)", path)
            if streams[0].codec_context is None:
                raise SourceError(f"is in a code that this build of FFmpeg does not know; {_ADVICE}", path)
            streams[0].codec_context.options = _STRICT
            streams[0].codec_context.thread_count = 1  # workers are processes, and each decodes another file
            yield container, streams[0]
    except (av.FFmpegError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SourceError(f"cannot be decoded ({reason}); download it again", path) from error


def _origin(options: SourceOptions, table: SampleTable) -> dict[str, Any]:
    """Return what the manifest keeps of the options."""
    names = ("every", "fps", "size", "short", "start", "stop")
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


KIND = Kind(
    "video",
    (".mp4", ".mkv", ".webm", ".avi", ".mov"),
    look,
    read,
    needs=("av", "a video", "video"),
    options=("every", "fps", "size", "short", "start", "stop"),
    unnamed="video",
    pair=pair,
    agree=agree,
    are_ragged=True,
    origin=_origin,
)
