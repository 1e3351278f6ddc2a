"""Whether the loops of `loops.py` are loaded; until then numpy does their work (see `packer.codecs.compiled`)."""

from __future__ import annotations

from packer.codecs import Loading

loading = Loading("readers.loops")
