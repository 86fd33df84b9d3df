"""Options of gids.Loader by their bare names, as a command line or a table of settings gives them, in their groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from gids.errors import ConfigError
from gids.runtime import MemoryOptions, OrderOptions, OutputOptions, PipelineOptions

GROUPS: dict[str, type[Any]] = {
    "order": OrderOptions,
    "memory": MemoryOptions,
    "pipeline": PipelineOptions,
    "output": OutputOptions,
}
#: What gids.Loader takes itself.
PLAIN = (
    *("seeds", "fanouts", "sampler", "batch_size"),
    *("features", "budget", "device", "storage", "shards", "packed", "spill"),
)


def loader_arguments(named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of :class:`gids.Loader` for options by name: ``window=4`` is one of ``pipeline``.

    Raises
    ------
    ConfigError
        Where no group has an option of that name.
    """
    group_of = {field.name: group for group, kind in GROUPS.items() for field in fields(kind)}
    arguments: dict[str, Any] = {}
    grouped: dict[str, dict[str, Any]] = {}
    for name, value in named.items():
        if name in PLAIN:
            arguments[name] = value
        elif name in group_of:
            grouped.setdefault(group_of[name], {})[name] = value
        else:
            raise ConfigError(f"option must be one of {', '.join([*PLAIN, *group_of])} (got {name!r})")
    return arguments | {group: GROUPS[group](**values) for group, values in grouped.items()}
