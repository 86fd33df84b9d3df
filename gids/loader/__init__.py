"""gids.Loader and what every door shares: seeds, the feed of our samplers, the choice of a backend."""

from gids.loader.epochs import EpochIterator, EpochLoader
from gids.loader.loader import Loader

__all__ = ["EpochIterator", "EpochLoader", "Loader"]
