"""Synthetic datasets of any size in bounded memory: planted communities, R-MAT and knowledge graphs."""

from gids.generate.communities import communities
from gids.generate.knowledge import knowledge
from gids.generate.rmat import rmat
from gids.generate.tables import feature_rows

__all__ = ["communities", "feature_rows", "knowledge", "rmat"]
