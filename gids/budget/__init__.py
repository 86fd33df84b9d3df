"""How memory is divided: what a run demands, what the user asks for, one cost model, tried on the planners of the run."""

from gids.budget.division import Division, Memory, Pace, Profiled, divide
from gids.budget.lists import divide_with_lists
from gids.budget.machine import available_bytes, default_budget, local_processes, memory_limit_bytes
from gids.budget.parts import Allotment, Demand, Request, TableDemand, TableShare
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
    "TableDemand",
    "TableProfile",
    "TableShare",
    "available_bytes",
    "default_budget",
    "divide",
    "divide_with_lists",
    "local_processes",
    "memory_limit_bytes",
    "split_pool",
]
