"""Random damage to datasets: bytes, lengths, pages, index arrays, frames, manifests."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

from packer.format import MANIFEST, PAGE_SIZE, BTree, Value, file_digest

#: Every codec and kind of field, fixed and ragged, in frames of samples and of rows.
GOLDEN = ("exact", "coded", "photos", "decimals", "jpegs", "clips")
TEMPLATES = [Path(__file__).parents[2] / "golden" / name for name in GOLDEN]

#: Numbers that break arithmetic most easily; some of their sums are 0 in 64 bits.
HOSTILE = (0, 1, 2, 7, 255, 2**16 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**53, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_PATHS = (
    "/etc/passwd",
    "../other/shards/00000.lmdb",
    "shards/../../x",
    "/dev/zero",
    "shards",
    ".",
    "",
    "a\0b",
    "\ud800",
)


def mutate(folder: Path, seed: int) -> str:
    """Copy a dataset to `folder` and damage it, both chosen by `seed`; return the damage in a few words."""
    rng = random.Random(seed)
    shutil.copytree(TEMPLATES[seed % len(TEMPLATES)], folder)
    kind = rng.choice(list(KINDS))
    if kind == "manifest":
        _mutate_manifest(folder, rng)
        return kind
    path = rng.choice([*folder.glob("*.lmdb"), *sorted(folder.glob("shards/*.lmdb")) * 3])
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        KINDS[kind](data, rng)
    path.write_bytes(data)
    if rng.random() < 0.9:
        # Else readers would notice the wrong size at once, and `verify` the digest.
        document = json.loads((folder / MANIFEST).read_bytes())
        for entry in _files(document):
            entry.update(bytes=(folder / entry["file"]).stat().st_size, digest=file_digest(folder / entry["file"]))
        seal(folder, document)
    return f"{kind} of {path.name}"


def _files(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [*document["shards"], *([document["names"]] if document.get("names") else [])]


def _bytes(data: bytearray, rng: random.Random) -> None:
    """Write a run of random bytes, anywhere."""
    at = rng.randrange(len(data) or 1)
    run = rng.randbytes(rng.choice([1, 1, 4, 64]))
    data[at : at + len(run)] = run


def _length(data: bytearray, rng: random.Random) -> None:
    """Make a file too short or too long."""
    if rng.random() < 0.8:
        del data[rng.choice([rng.randrange(len(data) + 1), len(data) // PAGE_SIZE // 2 * PAGE_SIZE]) :]
    else:
        data += rng.randbytes(rng.choice([1, PAGE_SIZE]))


def _index(data: bytearray, rng: random.Random) -> None:
    """Lie in an index array, in one of its numbers."""
    values = [v for v in _values(data) if v.key.startswith((b"column/", b"names/")) and v.size >= 8]
    if not values:
        return _pages(data, rng)
    value = rng.choice(values)
    at = value.offset + rng.randrange(value.size // 8) * 8
    known = int.from_bytes(data[at : at + 8], "little")
    number = rng.choice([*HOSTILE, known + 1, known - 1, known * 2, known + 2**63, rng.getrandbits(64)])
    data[at : at + 8] = (number % 2**64).to_bytes(8, "little")
    return None


def _pages(data: bytearray, rng: random.Random) -> None:
    """Lie in a page of the B-tree: its meta pages, the pages of its tree, or any."""
    tree = [n for n in range(2, len(data) // PAGE_SIZE) if data[n * PAGE_SIZE + 10] in (1, 2)]
    page = rng.choice([0, 1, *(tree or [0]) * 3])
    size = rng.choice([1, 2, 4, 8])
    # Headers, slots and meta data come first, nodes after them.
    at = rng.randrange(0, 160, 2) if rng.random() < 0.5 else rng.randrange(0, PAGE_SIZE, 2)
    at += page * PAGE_SIZE
    number = rng.choice([*HOSTILE, rng.getrandbits(64), rng.randrange(2 * len(data) // PAGE_SIZE + 1)])
    data[at : at + size] = (number % 2 ** (8 * size)).to_bytes(size, "little")


def _frames(data: bytearray, rng: random.Random) -> None:
    """Damage frames: their headers, which codecs trust, and their bytes."""
    chunks = [v for v in _values(data) if v.key.startswith(b"chunk/") and v.size]
    if not chunks:
        return _bytes(data, rng)
    chunk = rng.choice(chunks)
    at = chunk.offset + min(rng.choice([0, 1, 4, 8, rng.randrange(chunk.size)]), chunk.size - 1)
    run = rng.choice([b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", rng.randbytes(rng.randint(1, 16))])
    run = run[: chunk.offset + chunk.size - at]
    data[at : at + len(run)] = run
    return None


def _values(data: bytearray) -> list[Value]:
    """Return the values of a file that an earlier step may have damaged."""
    try:
        return list(BTree(memoryview(bytes(data)), "").values())
    except Exception:
        return []


#: Each damages the bytes of a file; a manifest has a function of its own.
KINDS: dict[str, Callable[[bytearray, random.Random], None]] = {
    "bytes": _bytes,
    "length": _length,
    "index": _index,
    "pages": _pages,
    "frames": _frames,
    "manifest": _bytes,
}


def _mutate_manifest(folder: Path, rng: random.Random) -> None:
    """Write random bytes, or a right digest over wrong content."""
    path = folder / MANIFEST
    if rng.random() < 0.2:
        data = bytearray(path.read_bytes())
        rng.choice([_bytes, _length])(data, rng)
        path.write_bytes(data)
        return
    document = json.loads(path.read_bytes())
    for _ in range(rng.choice([1, 1, 2, 4])):
        # An earlier lie may have taken away what the next one is about.
        with contextlib.suppress(TypeError, KeyError, IndexError, AttributeError):
            _lie(document, rng)
    seal(folder, document)


def _lie(document: Any, rng: random.Random) -> None:
    """Change one thing in a document, and everything that depends on it, so that the lie is not noticed at once."""
    if rng.random() < 0.3:
        shard = rng.choice(document["shards"])
        shard["samples"] = rng.choice([*HOSTILE, 5, 10**6, 10**9, 2**40])
        document["samples"] = sum(s["samples"] for s in document["shards"])
        return
    if rng.random() < 0.2:
        rng.choice(_files(document))["file"] = rng.choice(_PATHS)
        return
    if rng.random() < 0.3:
        field = rng.choice(document["fields"])
        field["shape"] = [rng.choice([None, 0, 1, 3, 2**20, 2**40]) for _ in range(rng.randint(0, 4))]
        return
    place: Any = document
    while True:
        key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not isinstance(place[key], (dict, list)) or not place[key] or rng.random() < 0.1:
            break
        place = place[key]
    place[key] = rng.choice([*HOSTILE, -1, 0.5, None, True, "", "x", *_PATHS, [], {}, [None] * 40, _deep(rng)])


def _deep(rng: random.Random) -> Any:
    value: Any = 0
    for _ in range(rng.choice([10, 100, 900])):
        value = [value] if rng.random() < 0.5 else {"id": value}
    return value


def seal(folder: Path, document: dict[str, Any]) -> None:
    """Write a document as a manifest with the right digest, whether or not the rest is right."""
    document.pop("digest", None)
    body = json.dumps(document, indent=1).encode()[:-2]
    digest = xxhash.xxh3_128_hexdigest(body + b"\n}")
    (folder / MANIFEST).write_bytes(body + f',\n "digest": "{digest}"\n}}\n'.encode())
