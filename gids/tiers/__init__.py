"""Feature tiers: a planned cache, a constant host buffer, and groups of batches that are read from disk once."""

from gids.tiers.accumulator import AccessModel, Accumulator
from gids.tiers.budget import BudgetSplit, TableProfile, TableShare, split_budget
from gids.tiers.host_buffer import HostBuffer, HostRows
from gids.tiers.hot_rows import EdgeScores, HotRows, RowScores, popularity_levels, top_edges, top_rows
from gids.tiers.plan import BatchPlan, Counters, GroupPlan, Planner, Source
from gids.tiers.policies import POLICIES, Policy, parse_policy
from gids.tiers.rank import Ranking, count_accesses, expected_visits, rank_nodes, reverse_pagerank
from gids.tiers.store import FeatureStore, PendingGroup

__all__ = [
    "POLICIES",
    "AccessModel",
    "Accumulator",
    "BatchPlan",
    "BudgetSplit",
    "Counters",
    "EdgeScores",
    "FeatureStore",
    "GroupPlan",
    "HostBuffer",
    "HostRows",
    "HotRows",
    "PendingGroup",
    "Planner",
    "Policy",
    "Ranking",
    "RowScores",
    "Source",
    "TableProfile",
    "TableShare",
    "count_accesses",
    "expected_visits",
    "parse_policy",
    "popularity_levels",
    "rank_nodes",
    "reverse_pagerank",
    "split_budget",
    "top_edges",
    "top_rows",
]
