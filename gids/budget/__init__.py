"""How memory is divided: what a run demands, what the user asks for, one cost model, tried on the planners of the run."""

from gids.budget.division import Division, Memory, Pace, Profiled, divide
from gids.budget.lists import divide_with_lists
from gids.budget.machine import default_budget, local_processes
from gids.budget.parts import Allotment, Demand, Request, SpillPlan, TableDemand, TableShare
from gids.budget.spill import SpillRequest, divide_with_spill
from gids.budget.split import BudgetSplit, Pool, TableProfile, split_pool

__all__ = [
    "Allotment",
    "BudgetSplit",
    "Demand",
    "Division",
    "Memory",
    "Pace",
    "Pool",
    "Profiled",
    "Request",
    "SpillPlan",
    "SpillRequest",
    "TableDemand",
    "TableProfile",
    "TableShare",
    "default_budget",
    "divide",
    "divide_with_lists",
    "divide_with_spill",
    "local_processes",
    "split_pool",
]
