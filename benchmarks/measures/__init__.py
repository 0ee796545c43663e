"""The measures, in the order in which a round runs them."""

from benchmarks.measures.drain import CORES, DEPTH, DRAIN, LATENCY, TWO_WORKERS
from benchmarks.measures.enqueue import ENQUEUE
from benchmarks.measures.files import FILES
from benchmarks.measures.fleet import FLEET
from benchmarks.measures.idle import IDLE
from benchmarks.measures.measure import QUICK, Bench, Column, Figures, Measure, Sizes
from benchmarks.measures.pickup import PICKUP
from benchmarks.measures.rescan import RESCAN

# The main table; each of the others has a table of its own.
MAIN = (ENQUEUE, DRAIN, TWO_WORKERS, PICKUP, IDLE)
OTHERS = (FILES, RESCAN, DEPTH, LATENCY, CORES, FLEET)
ALL = (*MAIN, *OTHERS)

__all__ = ["ALL", "MAIN", "OTHERS", "QUICK", "Bench", "Column", "Figures", "Measure", "Sizes"]
