"""Beyond one machine: rows of a table that is split over nodes, on their way between ranks."""

from gids.cluster.exchange import Exchange
from gids.cluster.homes import Homes
from gids.cluster.shards import Shards

__all__ = ["Exchange", "Homes", "Shards"]
