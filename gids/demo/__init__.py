"""``gids demo``: generate a graph, train on it from disk within a memory budget, and compare with training from memory."""

from gids.demo.run import run_demo
from gids.demo.settings import Settings
from gids.demo.table import print_table

__all__ = ["Settings", "print_table", "run_demo"]
