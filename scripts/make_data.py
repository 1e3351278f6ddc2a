"""Make the demo inputs: pictures, clips, clouds, tables, volumes and videos, from data that our dependencies ship.

$ python scripts/make_data.py --out data

The same files each time. If they are there already, nothing is done.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
from pathlib import Path

from inputs.clouds import make_clouds
from inputs.pictures import make_clips, make_pairs, make_photographs, make_pictures, make_videos
from inputs.tables import make_demos, make_digits, make_digits_table, make_photographs_table
from inputs.volumes import make_volumes

ROOT = Path(__file__).resolve().parent.parent
MAKERS = {
    "pairs": make_pairs,
    "pictures": make_pictures,
    "clips": make_clips,
    "photographs": make_photographs,
    "clouds": make_clouds,
    "digits.h5": make_digits,
    "demos.hdf5": make_demos,
    "volumes": make_volumes,
    "digits.parquet": make_digits_table,
    "photographs.csv": make_photographs_table,
    "videos": make_videos,
}
_STAMP = ".made"


def make_data(out: Path) -> bool:
    """Make the inputs in the folder `out`; return False if they were there already.

    Raises:
        FileExistsError: `out` holds a file or folder of one of the names in MAKERS that was not made here.
    """
    # They are made anew when the code that makes them changes.
    code = sorted((Path(__file__).parent / "inputs").glob("*.py"))
    recipe = hashlib.sha256(b"".join(file.read_bytes() for file in code)).hexdigest()
    stamp, paths = out / _STAMP, {name: out / name for name in MAKERS}
    if stamp.is_file():
        if stamp.read_text() == recipe:
            return False
        for path in paths.values():
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for path in paths.values():
        if path.exists():
            raise FileExistsError(f"{path} is there and was not made by this script; name another folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    stamp.write_text("unfinished")
    for name, path in paths.items():
        MAKERS[name](path)
    stamp.write_text(recipe)
    return True


def main() -> int:
    """Run as a command; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "data", help="folder to write to (default: data)")
    out = parser.parse_args().out
    try:
        made = make_data(out)
    except OSError as error:
        print(f"make_data: {error}", file=sys.stderr)
        return 2
    print(f"inputs {'made' if made else 'are there already'} in {out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
