"""What every door asks of a dataset: the topology to sample from, the seeds and the tables that are meant."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gids.budget import default_budget, local_processes
from gids.dataset import Dataset, open_dataset
from gids.errors import ConfigError, StorageError
from gids.runtime.options import OrderOptions, RuntimeOptions, optional_bytes
from gids.sampling import EdgeSeeds, TimedSeeds, Topology
from gids.sampling.disk_memory import reading_memory
from gids.sampling.order import by_type
from gids.sampling.topology import share_topology, topology_bytes
from gids.tiers.shared import SharedPlace
from gids.types import EdgeType, TableKey

if TYPE_CHECKING:
    from gids.partition import PartitionOrder

#: Of a loader's budget, what a graph on disk takes for reading lists, before any is kept.
READING_SHARE = 16

#: A split's name, a mask, node ids, ``(node type, any of those)``, any of those by node type, with times, or None: all.
Seeds = str | Tensor | tuple[str, Any] | Mapping[str, Any] | TimedSeeds | EdgeSeeds | None
#: Names of feature tables of the nodes; or by type, of nodes and of edges; None: none.
Features = str | Sequence[str] | Mapping[str | EdgeType, str | Sequence[str]] | None


def as_dataset(data: object) -> Dataset:
    """Open a dataset by its path; says which call converts what is no dataset."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, str | os.PathLike):
        path = Path(data)
        if path.is_file() and path.suffix in (".pt", ".pth", ".bin", ".dgl"):
            raise ConfigError(
                f"dataset must be a directory that gids has written (got the file {path}): "
                f"load it and call gids.convert(data, {str(path.with_suffix(''))!r}), or run `gids convert --help`"
            )
        return open_dataset(data)
    kind = f"{type(data).__module__.split('.')[0]}.{type(data).__name__}"
    raise ConfigError(f"dataset must be a gids.Dataset or its path (got a {kind}): call gids.convert(data, path) first")


def open_topology(dataset: Dataset, options: RuntimeOptions, time_attr: str | None = None) -> Topology:
    """Open the graph in memory, shared by all loaders of this process and by the ranks of this machine, or on disk.

    On disk it begins with what reading takes, and the runtime gives it lists out of its budget; with a figure of the
    user's it has all its memory at once. ``time_attr`` names its tables of times.
    """
    budget = optional_bytes(options.budget, "budget")
    budget = default_budget() if budget is None else budget
    given_bytes = optional_bytes(options.memory.topology_budget, "topology_budget")
    where = options.memory.topology
    if where is None:
        own = topology_bytes(dataset) // local_processes()
        where = "memory" if own <= (budget // 2 if given_bytes is None else given_bytes) else "disk"
    if where == "memory":
        return _share_among_ranks(dataset, time_attr)
    given = options.reading
    storage = replace(given, engine="auto" if given.engine in ("gds", "nvme") else given.engine)
    memory = reading_memory(budget // READING_SHARE) if given_bytes is None else given_bytes
    return Topology.from_dataset(dataset, on_disk=True, budget=memory, storage=storage, time_attr=time_attr)


def _share_among_ranks(dataset: Dataset, time_attr: str | None) -> Topology:
    processes = local_processes()
    if processes > 1:
        place = SharedPlace(f"topology {dataset.path} {dataset.id} {time_attr}", "the topology of all ranks")
        try:
            return share_topology(dataset, time_attr, place=place, processes=processes)
        except (ConfigError, StorageError) as error:  # a container's /dev/shm may be small: a copy for each rank works
            warnings.warn(f"every rank has a topology of its own: {error}", stacklevel=3)
    return share_topology(dataset, time_attr)


def resolve_seeds(dataset: Dataset, seeds: Seeds, name: str = "seeds") -> dict[str, Tensor] | TimedSeeds | EdgeSeeds:
    """Return the ids that seeds mean, by node type: int64, in host memory, checked.

    Parameters
    ----------
    dataset : Dataset
        The graph.
    seeds : str, Tensor, tuple, mapping, TimedSeeds, EdgeSeeds or None
        Name of a split; a mask or ids; with the node type on a graph that has several; ids with times; edges; None: all.
    name : str
        Of the argument, for messages.
    """
    if isinstance(seeds, EdgeSeeds):
        return _checked_edges(dataset, seeds)
    if isinstance(seeds, TimedSeeds):
        nodes, times = ({t: on_host(ids) for t, ids in by_type(part).items()} for part in (seeds.nodes, seeds.times))
        return TimedSeeds(_by_type(dataset, nodes, name), times)
    if isinstance(seeds, str):
        having = [ntype for ntype in dataset.node_types if seeds in dataset.split_names(ntype)]
        if not having:
            known = sorted({split for ntype in dataset.node_types for split in dataset.split_names(ntype)})
            raise ConfigError(
                f"{name} must be one of the splits {', '.join(known) or '(there are none)'} (got {seeds!r})"
            )
        return {ntype: dataset.split(seeds, ntype) for ntype in having}
    if isinstance(seeds, tuple) and len(seeds) == 2 and isinstance(seeds[0], str):
        return _by_type(dataset, {seeds[0]: seeds[1]}, name)
    if isinstance(seeds, Mapping):
        return _by_type(dataset, seeds, name)
    if seeds is None:
        return {ntype: torch.arange(dataset.num_nodes(ntype)) for ntype in dataset.node_types}
    if len(dataset.node_types) > 1:
        raise ConfigError(f"{name} must be given by node type where a graph has several (has {dataset.node_types})")
    return _by_type(dataset, {dataset.node_types[0]: seeds}, name)


def feature_tables(dataset: Dataset, wanted: Features, name: str = "features") -> list[TableKey]:
    """Return the tables that names mean, those of nodes before those of edges.

    Parameters
    ----------
    dataset : Dataset
        The graph.
    wanted : str, sequence of str, mapping or None
        Names alone mean every node type that has them. Types of a mapping are node types, edge types
        ``(source, name, destination)``, or the name of an edge type where that says which.
    name : str
        Of the argument, for messages.
    """
    if not isinstance(wanted, Mapping):
        return [key for table in _names(wanted) for key in _of_every_node_type(dataset, table, name)]
    keys: list[TableKey] = []
    for given, tables in wanted.items():
        kind = _kind(dataset, given, name)
        known = dataset.feature_names(kind) if isinstance(kind, str) else dataset.edge_feature_names(kind)
        for table in _names(tables):
            if table not in known:
                raise ConfigError(f"{name} of {given!r} must be among {known} (got {table!r})")
            keys.append(TableKey(kind, table))
    return sorted(dict.fromkeys(keys), key=lambda key: key.is_edge)


def _names(value: str | Sequence[str] | None) -> list[str]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else list(value)


def _of_every_node_type(dataset: Dataset, table: str, name: str) -> list[TableKey]:
    having = [ntype for ntype in dataset.node_types if table in dataset.feature_names(ntype)]
    if having:
        return [TableKey(ntype, table) for ntype in having]
    known = sorted({found for ntype in dataset.node_types for found in dataset.feature_names(ntype)})
    message = f"{name} must be among {known} (got {table!r})"
    of_edges = [etype for etype in dataset.edge_types if table in dataset.edge_feature_names(etype)]
    if of_edges:
        message += f": features of edges are named by type, {name}={{{of_edges[0]!r}: {table!r}, ...}}"
    raise ConfigError(message)


def _kind(dataset: Dataset, given: Any, name: str) -> str | EdgeType:
    if isinstance(given, str):
        if given in dataset.node_types:
            return given
        named = [etype for etype in dataset.edge_types if etype[1] == given]
        if len(named) == 1:
            return named[0]
    elif given in dataset.edge_types:
        found: EdgeType = given
        return found
    known: list[Any] = [*dataset.node_types, *dataset.edge_types]
    raise ConfigError(f"{name} must name types among {known} (got {given!r})")


def _by_type(dataset: Dataset, seeds: Mapping[str, Any], name: str) -> dict[str, Tensor]:
    found = {}
    for ntype, chosen in seeds.items():
        if ntype not in dataset.node_types:
            raise ConfigError(f"node types of {name} must be among {dataset.node_types} (got {ntype!r})")
        found[ntype] = _ids(dataset, ntype, chosen, name)
    return found


def _ids(dataset: Dataset, ntype: str, chosen: Any, name: str) -> Tensor:
    count = dataset.num_nodes(ntype)
    if chosen is None:
        return torch.arange(count)
    if isinstance(chosen, str):
        return dataset.split(chosen, ntype)
    ids = on_host(chosen)
    if ids.dtype == torch.bool:
        if len(ids) != count:
            raise ConfigError(f"mask of {name} must have {count} entries, one per node of {ntype!r} (got {len(ids)})")
        return ids.nonzero().flatten()
    if ids.dim() != 1 or ids.dtype.is_floating_point:
        raise ConfigError(f"{name} must be integers of one dimension (got {ids.dtype}, {ids.dim()} dimensions)")
    ids = ids.to(torch.int64)
    if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < count):
        raise ConfigError(f"{name} must be in [0, {count}) (got {int(ids.min())} to {int(ids.max())})")
    return ids


def _checked_edges(dataset: Dataset, seeds: EdgeSeeds) -> EdgeSeeds:
    if seeds.etype is None and len(dataset.edge_types) > 1:
        raise ConfigError(f"etype of EdgeSeeds must be given where a graph has several (has {dataset.edge_types})")
    if seeds.etype is not None and seeds.etype not in dataset.edge_types:
        raise ConfigError(f"etype of EdgeSeeds must be among {dataset.edge_types} (got {seeds.etype})")
    times = None if seeds.times is None else on_host(seeds.times)
    return replace(seeds, src=on_host(seeds.src), dst=on_host(seeds.dst), times=times)


def arrangement_of(
    dataset: Dataset, order: OrderOptions | None, seeds: Mapping[str, Tensor] | TimedSeeds | EdgeSeeds
) -> PartitionOrder | None:
    """Return the order of the seeds by the parts that were asked for; None for a plain shuffle."""
    if order is None or order.parts is None:
        return None
    from gids.partition.order import order_by_parts  # brings the partitioner, which training does without

    nodes = by_type(seeds.nodes) if isinstance(seeds, TimedSeeds) else seeds
    return order_by_parts(dataset, order.parts, nodes, order.parts_per_group)


def on_host(ids: Any) -> Tensor:
    """Return ids as a tensor in host memory, from a tensor, an array, a sequence or anything in CUDA memory."""
    if isinstance(ids, Tensor) and not ids.is_cuda:
        return ids
    if hasattr(ids, "__cuda_array_interface__"):
        from gids.cuda.interop import seeds_to_host

        return seeds_to_host(ids)
    return torch.as_tensor(ids)


def starting_nodes(dataset: Dataset, seeds: Mapping[str, Tensor] | TimedSeeds | EdgeSeeds) -> dict[str, Tensor]:
    """Return the nodes that sampling starts from, by type: the seeds, or the ends of the seed edges."""
    if isinstance(seeds, TimedSeeds):
        return by_type(seeds.nodes)
    if not isinstance(seeds, EdgeSeeds):
        return dict(seeds)
    source, _, destination = seeds.etype or dataset.edge_types[0]
    if source == destination:
        return {source: _distinct(torch.cat([seeds.src, seeds.dst]))}
    return {source: _distinct(seeds.src), destination: _distinct(seeds.dst)}


def _distinct(ids: Tensor) -> Tensor:
    return torch.from_numpy(np.unique(ids.numpy()))
