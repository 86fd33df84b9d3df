"""Synthetic datasets of any size in bounded memory: planted communities and R-MAT."""

from gids.generate.communities import communities
from gids.generate.rmat import rmat
from gids.generate.tables import feature_rows

__all__ = ["communities", "feature_rows", "rmat"]
