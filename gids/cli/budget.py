"""``gids budget``: sample a short profile, try splits of a memory budget on it, say the best and why."""

from __future__ import annotations

import argparse
import json
from collections.abc import Hashable
from typing import Any

from gids.units import parse_bytes


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("dataset", help="directory of the dataset")
    parser.add_argument("--budget", required=True, help="memory for cache, host buffer, groups, window and staging")
    parser.add_argument("--split", default="train", help="seeds of the profile (default train)")
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 10], help="outermost first (default 10 10)")
    parser.add_argument("--batch-size", type=int, default=1024, help="seeds of a batch (default 1024)")
    parser.add_argument("--batches", type=int, default=48, help="batches of the profile (default 48)")
    ranks = ["visits", "pagerank", "degree", "counted"]
    parser.add_argument("--rank", choices=ranks, default="visits", help="of the host buffer (default visits)")
    for name in ("cache", "host", "group", "staging"):
        parser.add_argument(f"--{name}", metavar="BYTES", help=f"fix the memory for {name}")
    parser.add_argument("--window", type=int, help="fix the batches to look ahead")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> None:
    """Profile, choose, and print."""
    import gids
    from gids.storage import load_curve
    from gids.tiers import split_budget
    from gids.tiers.budget import host_bytes

    dataset = gids.open(args.dataset)
    profiles = profile_of(dataset, args)
    tables = {key: profile.table for key, profile in profiles.items()}
    curve = load_curve(next(iter(tables.values())).stripes[0].path)
    split = split_budget(
        parse_bytes(args.budget, "budget"),
        profiles,
        curve,
        window=args.window,
        cache=fixed_bytes(args, "cache"),
        host=fixed_bytes(args, "host"),
        group=fixed_bytes(args, "group"),
        staging=fixed_bytes(args, "staging"),
    )
    loader = {
        "cache": sum(s.cache_bytes(tables[key]) for key, s in split.tables.items()),
        "host_buffer": sum(host_bytes(s.host_rows, tables[key].row_bytes) for key, s in split.tables.items()),
        "groups": sum(s.group_bytes for s in split.tables.values()),
        "window": split.window,
        "max_group": split.group_batches,
    }
    if args.json:
        shares = {
            " ".join(map(str, key)) if isinstance(key, tuple) else key: vars(s) for key, s in split.tables.items()
        }
        print(
            json.dumps(
                {
                    "budget": split.budget,
                    "total": split.total,
                    "staging": split.staging_bytes,
                    "loader": loader,
                    "tables": shares,
                    "curve": curve.source,
                    "reasons": split.reasons,
                },
                indent=2,
            )
        )
        return
    print(split)
    print(f"device: {curve.source}")
    print("gids.Loader(..., " + ", ".join(f"{name}={value}" for name, value in loader.items()) + ")")


def fixed_bytes(args: argparse.Namespace, name: str) -> int | None:
    """Parse a size that may be left to be chosen."""
    value = getattr(args, name)
    return None if value is None else parse_bytes(value, name)


def profile_of(dataset: Any, args: argparse.Namespace) -> dict[Hashable, Any]:
    """Sample batches of the first epoch and list the rows that each feature table is asked for."""
    import torch

    from gids._native import ThreadPool
    from gids.errors import ConfigError
    from gids.sampling import NeighborSampler, SampleKey, Topology
    from gids.tiers import EdgeScores, HotRows, RowScores, TableProfile, rank_nodes

    seeds = {
        ntype: dataset.split(args.split, ntype)
        for ntype in dataset.node_types
        if args.split in dataset.split_names(ntype)
    }
    if not seeds:
        raise ConfigError(f"split must be one that the dataset has (got {args.split!r})")
    edge_tables = {
        (e, n): dataset.edge_feature_table(e, n) for e in dataset.edge_types for n in dataset.edge_feature_names(e)
    }
    node_tables = {(t, n): dataset.feature_table(t, n) for t in dataset.node_types for n in dataset.feature_names(t)}
    if not node_tables and not edge_tables:
        raise ConfigError(f"dataset must have a feature table (got none in {dataset.path})")
    pool = ThreadPool(torch.get_num_threads(), "gids-budget")
    topology = Topology.from_dataset(dataset)
    sampler = NeighborSampler(args.fanouts, edge_ids=bool(edge_tables))
    generator = torch.Generator().manual_seed(0)
    orders = {ntype: ids[torch.randperm(len(ids), generator=generator)] for ntype, ids in seeds.items()}
    total = sum(map(len, orders.values()))
    rows: dict[Hashable, list[Any]] = {key: [] for key in [*node_tables, *edge_tables]}
    for number in range(args.batches):
        batch = {}
        for (
            ntype,
            ids,
        ) in orders.items():  # types share a batch as they share the split; the order starts over at its end
            size = max(1, args.batch_size * len(ids) // total)
            at = torch.arange(number * size, number * size + min(size, len(ids))) % len(ids)
            batch[ntype] = ids[at]
        sample = sampler.sample(topology, batch, SampleKey(0, 0, number), pool)
        for ntype, name in node_tables:
            rows[ntype, name].append(sample.input_nodes[ntype])
        for etype, name in edge_tables:
            taken = [block.edge_ids[etype] for block in sample.blocks if block.edge_ids is not None]
            rows[etype, name].append(torch.unique(torch.cat(taken)))
    ranks = {} if args.rank == "counted" else rank_nodes(dataset, seeds, by=args.rank, fanouts=args.fanouts, pool=pool)
    hot: dict[Hashable, HotRows] = {key: RowScores(ranks[key[0]]) for key in node_tables if ranks}
    hot |= {key: EdgeScores(ranks[key[0][2]], dataset.indptr(key[0])) for key in edge_tables if ranks}
    return {key: TableProfile(table, rows[key], hot.get(key)) for key, table in {**node_tables, **edge_tables}.items()}
