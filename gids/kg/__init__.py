"""Knowledge graphs: complete subgraphs of queries, from memory, from disk, or from slices that were made once."""

from gids.kg.graph import Graph
from gids.kg.loader import Loader
from gids.kg.queries import Answers, filtered_ranks, with_reverse
from gids.kg.slices import Slices, SlicingFigures
from gids.kg.subgraphs import Batch, Subgraphs

__all__ = [
    "Answers",
    "Batch",
    "Graph",
    "Loader",
    "Slices",
    "SlicingFigures",
    "Subgraphs",
    "filtered_ranks",
    "with_reverse",
]
