"""Keys and values of names.lmdb."""

from __future__ import annotations

import struct

#: Keys of the two directions: `#` and the number, 8 bytes big-endian; `=` and the name, UTF-8.
BY_NUMBER = b"#"
BY_NAME = b"="
KEY = struct.Struct(">cQ")
VALUE = struct.Struct("<Q")
MAX_NAME = 510
