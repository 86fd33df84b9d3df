"""Feature tiers: a planned cache, a constant host buffer, and groups of batches that are read from disk once."""

from gids.tiers.accumulator import AccessModel, Accumulator
from gids.tiers.contract import Store, Ticket, fetch_now
from gids.tiers.host_buffer import HostBuffer, HostRows
from gids.tiers.hot_rows import EdgeScores, HotRows, RowScores, popularity_levels, top_edges, top_rows
from gids.tiers.plan import BatchPlan, Counters, GroupPlan, Planner, Source
from gids.tiers.policies import POLICIES, Policy, parse_policy
from gids.tiers.rank import Ranking, count_accesses, expected_visits, rank_nodes, reverse_pagerank
from gids.tiers.store import GroupTicket, TableStore

__all__ = [
    "POLICIES",
    "AccessModel",
    "Accumulator",
    "BatchPlan",
    "Counters",
    "EdgeScores",
    "GroupPlan",
    "GroupTicket",
    "HostBuffer",
    "HostRows",
    "HotRows",
    "Planner",
    "Policy",
    "Ranking",
    "RowScores",
    "Source",
    "Store",
    "TableStore",
    "Ticket",
    "count_accesses",
    "expected_visits",
    "fetch_now",
    "parse_policy",
    "popularity_levels",
    "rank_nodes",
    "reverse_pagerank",
    "top_edges",
    "top_rows",
]
