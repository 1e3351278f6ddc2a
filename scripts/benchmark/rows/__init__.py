"""The rows of the benchmark; importing this package registers them, in the order of the table."""

# isort: off
from benchmark.rows import tables as tables
from benchmark.rows import pairs as pairs
from benchmark.rows import clouds as clouds
from benchmark.rows import parts as parts
from benchmark.rows import opening as opening
from benchmark.rows import growth as growth
from benchmark.rows import converting as converting
from benchmark.rows import machines as machines
from benchmark.rows import decimals as decimals
from benchmark.rows import volumes as volumes
