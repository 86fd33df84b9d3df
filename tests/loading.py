"""A loader from options by their bare names, so that a test reads as the table of settings it is."""

import gids
from gids.bench.options import loader_arguments


def load(dataset, seeds=None, **options):
    """Open a gids.Loader: ``load(dataset, "train", fanouts=[4], window=2, cache=0)``."""
    return gids.Loader(dataset, **loader_arguments({"seeds": seeds} | options))
