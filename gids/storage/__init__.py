"""Reading rows from disk: plan byte ranges, keep the device busy, put every row where it belongs."""

from gids.storage.curve import DeviceCurve, load_curve
from gids.storage.options import FaultOptions, StorageOptions
from gids.storage.plan import PlanLimits, Read, ReadPlan, plan_reads
from gids.storage.reader import PendingRead, RowReader, aligned_empty, engine_availability

__all__ = [
    "DeviceCurve",
    "FaultOptions",
    "PendingRead",
    "PlanLimits",
    "Read",
    "ReadPlan",
    "RowReader",
    "StorageOptions",
    "aligned_empty",
    "engine_availability",
    "load_curve",
    "plan_reads",
]
