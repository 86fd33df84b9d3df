"""Everything a user may choose about a loader, checked once; every None is decided by the loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gids.errors import ConfigError
from gids.loader.host_rank import check_host_rank
from gids.loader.pipeline import PipelineOptions
from gids.loader.seeds import Uneven, check_order
from gids.storage import StorageOptions
from gids.tiers import Policy
from gids.units import parse_bytes

TOPOLOGIES = ("memory", "disk")


@dataclass(frozen=True)
class LoaderOptions:
    """See :class:`gids.Loader` for what each of them means."""

    batch_size: int
    topology: str
    topology_bytes: int
    features: Any
    edge_features: Any
    with_labels: bool
    budget: int | None
    cache_bytes: int | None
    host_bytes: int | None
    host_rank: Any
    group_bytes: int | None
    policy: str | Policy
    popularity: bool | None  # None: where its memory is a small part of the cache's
    storage: StorageOptions
    staging_fixed: bool  # the user chose storage.staging_bytes; otherwise a small budget makes it smaller
    window_fixed: bool  # the user chose pipeline.window, and likewise below; otherwise a profile may choose another
    group_fixed: bool
    seed: int
    shuffle: bool
    drop_last: bool
    rank: int
    world_size: int
    uneven: Uneven
    dtype: torch.dtype | None
    device: torch.device | None
    device_budget: int | None
    pin_memory: bool
    threads: int
    progress: bool
    record: bool
    pipeline: PipelineOptions = field(default_factory=PipelineOptions)

    def __post_init__(self) -> None:
        check_order(batch_size=self.batch_size, rank=self.rank, world_size=self.world_size, uneven=self.uneven)
        check_host_rank(self.host_rank)
        if self.topology not in TOPOLOGIES:
            raise ConfigError(f"topology must be one of {', '.join(TOPOLOGIES)} (got {self.topology!r})")
        if self.threads < 1:
            raise ConfigError(f"threads must be at least 1 (got {self.threads})")
        if not 0 <= self.seed < 1 << 64:
            raise ConfigError(f"seed must be in [0, 2**64) (got {self.seed})")


def optional_bytes(value: int | str | None, name: str) -> int | None:
    """Parse a size that may be left to the loader."""
    return None if value is None else parse_bytes(value, name)


def as_names(value: str | Sequence[str] | None) -> list[str]:
    """Give names as a list: ``"feat"``, ``["feat", "year"]`` or None for none."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value)


def names_by_type(
    wanted: str | Sequence[str] | Mapping[Any, str | Sequence[str]] | None,
    stored: Mapping[Any, Sequence[str]],
    what: str,
) -> list[tuple[Any, str]]:
    """Resolve names of feature tables to (type, name) pairs; a name without a type means every type that has it."""
    pairs: list[tuple[Any, str]] = []
    if isinstance(wanted, Mapping):
        for kind, names in wanted.items():
            if kind not in stored:
                raise ConfigError(f"{what} must name types among {list(stored)} (got {kind!r})")
            for name in as_names(names):
                if name not in stored[kind]:
                    raise ConfigError(f"{what} of {kind!r} must be among {list(stored[kind])} (got {name!r})")
                pairs.append((kind, name))
        return pairs
    for name in as_names(wanted):
        having = [kind for kind, names in stored.items() if name in names]
        if not having:
            raise ConfigError(
                f"{what} must be among {sorted({n for names in stored.values() for n in names})} (got {name!r})"
            )
        pairs.extend((kind, name) for kind in having)
    return pairs
