"""The rows of the benchmark; importing this package registers them, in the order of the table."""

# isort: off
from benchmark.rows import tables as tables
from benchmark.rows import pairs as pairs
from benchmark.rows import frameworks as frameworks
from benchmark.rows import clouds as clouds
from benchmark.rows import crops as crops
from benchmark.rows import windows as windows
from benchmark.rows import cold as cold
from benchmark.rows import opening as opening
from benchmark.rows import converting as converting
from benchmark.rows import verifying as verifying
from benchmark.rows import memory as memory
