"""gids.infer: run a model over every node of a dataset, layer by layer, with everything large on disk."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gids._native import ThreadPool
from gids.budget import default_budget
from gids.dataset import Dataset, DatasetWriter, TableWriter, open_dataset
from gids.dataset.table_writer import Progress, dtype_name
from gids.dataset.writer import copy_rows
from gids.errors import ConfigError, DatasetError
from gids.infer.layers import LayerFunction, check_device, digest_of, evaluating, layers_of
from gids.infer.memory import DISK_TOPOLOGY_SHARE, TOPOLOGY_SHARE, divide, staging_bytes
from gids.infer.schedule import LayerPlan, RowKind, largest_need, needed_types, plan_layer
from gids.infer.sweep import LayerSweep, Sources, SweepFacts, widened
from gids.infer.tiles import TileMaker, check_weights, count_out_degrees, out_degrees_bytes
from gids.ledger import Ledger
from gids.sampling import Topology
from gids.sampling.sampler import Fanout, check_fanouts
from gids.sampling.topology import topology_bytes
from gids.storage import RowReader, StorageOptions
from gids.table import DTYPES, RowTable
from gids.types import EdgeType
from gids.units import format_bytes, parse_bytes

#: Table of an intermediate layer.
HIDDEN = "rows"


def infer(
    model: Any,
    dataset: Dataset | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    budget: int | str | None = None,
    features: str | Mapping[str, str] = "feat",
    edge_features: str | None = None,
    edge_weights: bool = False,
    fanouts: Sequence[Fanout] | None = None,
    seed: int = 0,
    nodes: Sequence[str] | None = None,
    name: str = "embedding",
    dtype: str | None = None,
    rows: bool = True,
    top_k: int | None = None,
    tile: int | None = None,
    device: str = "cpu",
    storage: StorageOptions | None = None,
    overwrite: bool = False,
    stripe_dirs: Sequence[str | os.PathLike[str]] = (),
    progress: Progress | None = None,
) -> Dataset:
    """Run a model over every node, layer by layer, and write the results as a dataset.

    Features and every layer stay on disk; memory stays within the budget. The results are those of the same layers in
    memory, and the same to the bit for every budget. A killed run goes on where it was when the same call is made again.

    Parameters
    ----------
    model : Module or sequence of callables
        One of :mod:`gids.models`, a module with ``inference_layers()``, or functions of (block, rows); see
        docs/inference.md.
    dataset : Dataset or path-like
        Graph and features.
    out : path-like
        Dataset to make; it appears when everything is on disk.
    budget : int or str, optional
        Memory for everything but the model itself; by default half of what is available.
    features : str or mapping of str to str
        Feature table that the first layer reads, by node type where they differ.
    edge_features : str, optional
        Table whose rows are ``block.edge_features``.
    edge_weights : bool
        Whether blocks have the stored weights of their edges.
    fanouts : sequence of int or mapping, optional
        In-edges drawn per node and layer, first layer first, instead of all: the same for every run with ``seed``.
    seed : int
        Of that draw.
    nodes : sequence of str, optional
        Node types to compute; by default all that have in-edges.
    name : str
        Of the table of results.
    dtype : str, optional
        What results are stored as, e.g. ``"float16"``; by default as computed. Layers between are stored as computed.
    rows : bool
        Whether the results themselves are written; without them there is only ``top_k``.
    top_k : int, optional
        Also write the ``k`` classes with the highest values of each node, best first, ties by number: tables
        ``<name>_class`` (int32) and ``<name>_score``.
    tile : int, optional
        Destinations that a layer computes in one call; by default by the graph and the size of rows. A part of the
        result: matrix products of another size may add in another order.
    device : str
        ``"cpu"``; others are refused.
    storage : StorageOptions, optional
        How rows are read.
    overwrite : bool
        Replace an existing dataset at the end.
    stripe_dirs : sequence of path-like
        Directories that the results are spread over, one for each drive.
    progress : callable, optional
        Called as ``progress(table, bytes_done, bytes_total)``.

    Returns
    -------
    Dataset
        With the table ``name`` of each node type, and its original ids where the nodes were relabelled.
    """
    return Inference(
        model,
        dataset,
        out,
        budget=budget,
        features=features,
        edge_features=edge_features,
        edge_weights=edge_weights,
        fanouts=fanouts,
        seed=seed,
        nodes=nodes,
        name=name,
        dtype=dtype,
        rows=rows,
        top_k=top_k,
        tile=tile,
        device=device,
        storage=storage,
        overwrite=overwrite,
        stripe_dirs=stripe_dirs,
        progress=progress,
    ).run()


class Inference:
    """One job; arguments as in :func:`infer`.

    Attributes
    ----------
    facts : dict
        After :meth:`run`: bytes read and written, seconds and memory, by layer.
    """

    def __init__(
        self,
        model: Any,
        dataset: Dataset | str | os.PathLike[str],
        out: str | os.PathLike[str],
        *,
        budget: int | str | None = None,
        features: str | Mapping[str, str] = "feat",
        edge_features: str | None = None,
        edge_weights: bool = False,
        fanouts: Sequence[Fanout] | None = None,
        seed: int = 0,
        nodes: Sequence[str] | None = None,
        name: str = "embedding",
        dtype: str | None = None,
        rows: bool = True,
        top_k: int | None = None,
        tile: int | None = None,
        device: str = "cpu",
        storage: StorageOptions | None = None,
        overwrite: bool = False,
        stripe_dirs: Sequence[str | os.PathLike[str]] = (),
        progress: Progress | None = None,
    ):
        self.dataset = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
        self.model, self.out = model, Path(out).absolute()
        if torch.device(device).type != "cpu":
            raise ConfigError(f"device must be 'cpu' for inference: layers are computed there (got {device!r})")
        check_device(model)
        self.layers: list[LayerFunction] = layers_of(model)
        self.budget = default_budget() if budget is None else parse_bytes(budget, "budget")
        self.fanouts: list[Fanout] = [-1] * len(self.layers) if fanouts is None else check_fanouts(fanouts)
        if len(self.fanouts) != len(self.layers):
            raise ConfigError(f"fanouts must be one for each of {len(self.layers)} layers (got {len(self.fanouts)})")
        if edge_weights:
            check_weights(self.dataset, self.dataset.edge_types, self.fanouts)
        if top_k is not None and top_k < 1:
            raise ConfigError(f"top_k must be at least 1 (got {top_k})")
        if not rows and top_k is None:
            raise ConfigError("rows must be written, or top_k be given (got neither)")
        if tile is not None and tile < 1:
            raise ConfigError(f"tile must be at least 1 (got {tile})")
        if dtype is not None and not DTYPES[dtype_name(dtype)].is_floating_point:
            raise ConfigError(f"dtype of results must be floating point (got {dtype!r})")
        self.nodes = self._output_types(nodes)
        self.tables = self._feature_tables(features)
        self.edge_tables = self._edge_feature_tables(edge_features)
        self.edge_weights, self.seed, self.name, self.dtype, self.top_k = edge_weights, seed, name, dtype, top_k
        self._rows, self._tile, self._overwrite, self._stripe_dirs = rows, tile, overwrite, stripe_dirs
        self._storage, self._progress = storage or StorageOptions(), progress
        self._storage = replace(self._storage, staging_bytes=staging_bytes(self.budget))
        self.ledger = Ledger(self.budget)
        self.facts: dict[str, Any] = {}

    def _output_types(self, nodes: Sequence[str] | None) -> list[str]:
        known = self.dataset.node_types
        if not self.dataset.edge_types:
            raise ConfigError(f"{self.dataset.path} must have edges to compute layers on (it has none)")
        if nodes is None:
            return [ntype for ntype in known if any(etype[2] == ntype for etype in self.dataset.edge_types)]
        unknown = [ntype for ntype in nodes if ntype not in known]
        if unknown or not nodes:
            raise ConfigError(f"nodes must be node types among {', '.join(known)} (got {list(nodes)})")
        return [ntype for ntype in known if ntype in nodes]

    def _feature_tables(self, features: str | Mapping[str, str]) -> dict[str, RowTable]:
        tables = {}
        for ntype in needed_types(self.dataset, self.nodes, len(self.layers))[0]:
            name = features if isinstance(features, str) else features.get(ntype, "feat")
            table = self.dataset.feature_table(ntype, name)
            if not table.torch_dtype.is_floating_point:
                raise ConfigError(f"features {table.name} must be floating point (got {table.dtype})")
            tables[ntype] = table
        return tables

    def _edge_feature_tables(self, name: str | None) -> dict[EdgeType, RowTable]:
        if name is None:
            return {}
        found = {e: self.dataset.edge_feature_table(e, name) for e in self.dataset.edge_types}
        for table in found.values():
            if not table.torch_dtype.is_floating_point:
                raise ConfigError(f"edge_features {table.name} must be floating point (got {table.dtype})")
        return found

    @property
    def job(self) -> dict[str, Any]:
        """What decides the results: a killed run is continued by an equal job only."""
        return {
            "infer": self.dataset.id,
            "model": digest_of(self.model),
            "layers": len(self.layers),
            "features": {ntype: table.name for ntype, table in self.tables.items()},
            "edge_features": sorted(table.name for table in self.edge_tables.values()),
            "edge_weights": self.edge_weights,
            "fanouts": [str(fanout) for fanout in self.fanouts],
            "seed": self.seed,
            "nodes": self.nodes,
            "tile": self._tile,
        }

    def run(self) -> Dataset:
        """Compute everything and give the finished dataset."""
        begin = time.perf_counter()
        written = {"name": self.name, "dtype": self.dtype, "rows": self._rows, "top_k": self.top_k}
        writer = DatasetWriter(
            self.out,
            overwrite=self._overwrite,
            job=self.job | written,
            stripe_dirs=self._stripe_dirs,
            attributes={"inference": self.job | written},
            progress=self._progress,
        )
        with writer, evaluating(self.model), ExitStack() as stack:
            plans, makers = self.prepare(stack)
            self._require_space(plans)
            tables, layer_facts = self.tables, []
            for number, plan in enumerate(plans):
                last = number == len(plans) - 1
                began = time.perf_counter()
                if last:
                    facts = self._final_layer(writer, plan, makers[number], tables)
                else:
                    tables, facts = self._hidden_layer(writer, plan, makers[number], tables)
                layer_facts.append(facts | {"seconds": time.perf_counter() - began})
            dataset = writer.finish()
        self.facts = {"seconds": time.perf_counter() - begin, "layers": layer_facts, "budget_bytes": self.budget}
        self.facts["memory"] = {part: asdict(usage) for part, usage in self.ledger.usage().items()}
        for what in ("bytes_read", "bytes_written"):
            self.facts[what] = sum(facts[what] for facts in layer_facts)
        return dataset

    def prepare(self, stack: ExitStack) -> tuple[list[LayerPlan], list[TileMaker]]:
        """Open the graph and try every layer; what is opened is closed by ``stack``."""
        topology = self._open_topology()
        stack.callback(topology.close)
        self.ledger.account("topology", topology.resident_bytes()).take(topology.resident_bytes())
        degrees = self._out_degrees()
        readers = len(self.tables) + len(self.edge_tables)
        staging = readers * self._storage.staging_bytes
        self.ledger.account("staging", staging).take(staging)
        pool = ThreadPool(len(os.sched_getaffinity(0)), "gids-infer")
        needed = needed_types(self.dataset, self.nodes, len(self.layers))
        kinds = {ntype: RowKind(t.dim, widened(t.torch_dtype)) for ntype, t in self.tables.items()}
        plans, makers = [], []
        for number, layer in enumerate(self.layers):
            maker = TileMaker(
                self.dataset,
                topology,
                self.fanouts[number],
                self.seed,
                len(self.layers) - 1 - number,
                edge_ids=bool(self.edge_tables),
                weights=self.edge_weights,
                out_degrees=degrees if getattr(layer, "needs_out_degrees", False) else None,
                pool=pool,
            )
            with torch.inference_mode():
                plan = plan_layer(
                    self.dataset, layer, number, maker, kinds, needed[number + 1], self.edge_tables, self._tile
                )
            plans.append(plan)
            makers.append(maker)
            kinds = {ntype: RowKind(of.trial.dim, of.trial.dtype) for ntype, of in plan.types.items()}
        if self.top_k is not None:
            for ntype, of in plans[-1].types.items():
                if of.trial.dim < self.top_k:
                    raise ConfigError(
                        f"top_k must be at most the {of.trial.dim} values of {ntype!r} (got {self.top_k})"
                    )
        return plans, makers

    def _open_topology(self) -> Topology:
        if topology_bytes(self.dataset) <= TOPOLOGY_SHARE * self.budget:
            return Topology.from_dataset(self.dataset)
        try:
            return Topology.from_dataset(self.dataset, on_disk=True, budget=int(DISK_TOPOLOGY_SHARE * self.budget))
        except ConfigError:  # less than the offsets take: the least that works, which the budget must then bear
            return Topology.from_dataset(self.dataset, on_disk=True, budget=0)

    def _out_degrees(self) -> dict[EdgeType, Any] | None:
        if not any(getattr(layer, "needs_out_degrees", False) for layer in self.layers):
            return None
        if any(fanout != -1 for fanout in self.fanouts):
            raise ConfigError(
                "fanouts must be -1 for layers that need the degrees of the whole graph, such as GCN's "
                f"(got {self.fanouts})"
            )
        size = out_degrees_bytes(self.dataset)
        self.ledger.account("degrees", self.budget).reserve(size)
        return count_out_degrees(self.dataset)

    @property
    def standing_bytes(self) -> int:
        """Memory that stays in use through every layer."""
        return sum(self.ledger.account(part).used for part in ("topology", "degrees", "staging"))

    def _require_space(self, plans: list[LayerPlan]) -> None:
        """Refuse a disk on which the largest two layers in a row do not fit, beside what is there already."""
        sizes = [self.layer_bytes(plan, number == len(plans) - 1) for number, plan in enumerate(plans)]
        most = max(sum(sizes[max(0, number - 1) : number + 1]) for number in range(len(sizes)))
        partial = self.out.parent / f".{self.out.name}.partial"
        there = sum(path.stat().st_blocks * 512 for path in partial.rglob("*") if path.is_file())
        free = shutil.disk_usage(self.out.parent).free
        if not self._stripe_dirs and most - there > free:
            raise DatasetError(
                f"layers and results need {format_bytes(most - there)} on the disk of {self.out.parent}, which has "
                f"{format_bytes(free)} free: free some space and run the command again"
            )

    def layer_bytes(self, plan: LayerPlan, last: bool) -> int:
        """Return the bytes that a layer writes."""
        total = 0
        for ntype, of in plan.types.items():
            kinds = (
                self._final_kinds(of.trial.dim, of.trial.dtype) if last else {HIDDEN: (of.trial.dim, of.trial.dtype)}
            )
            width = sum(dim * kind.itemsize for dim, kind in kinds.values())
            total += self.dataset.num_nodes(ntype) * width
        return total

    def _final_kinds(self, dim: int, computed: torch.dtype) -> dict[str, tuple[int, torch.dtype]]:
        stored = computed if self.dtype is None else DTYPES[dtype_name(self.dtype)]
        kinds = {self.name: (dim, stored)} if self._rows else {}
        if self.top_k is not None:
            kinds[f"{self.name}_class"] = (self.top_k, torch.int32)
            kinds[f"{self.name}_score"] = (self.top_k, stored)
        return kinds

    def _finish_rows(self, rows: Tensor) -> dict[str, Tensor]:
        kinds = self._final_kinds(rows.shape[1], rows.dtype)
        found = {self.name: rows.to(kinds[self.name][1])} if self._rows else {}
        if self.top_k is not None:
            scores, classes = rows.sort(dim=1, descending=True, stable=True)
            found[f"{self.name}_class"] = classes[:, : self.top_k].to(torch.int32).contiguous()
            found[f"{self.name}_score"] = scores[:, : self.top_k].to(kinds[f"{self.name}_score"][1]).contiguous()
        return found

    def _hidden_layer(
        self, writer: DatasetWriter, plan: LayerPlan, maker: TileMaker, tables: dict[str, RowTable]
    ) -> tuple[dict[str, RowTable], dict[str, Any]]:
        """Compute a layer into a dataset of its own among the work files; the one before is then removed."""
        path = writer.work / f"layer-{plan.number}"
        later = any((writer.work / f"layer-{n}").exists() for n in range(plan.number + 1, len(self.layers)))
        facts: dict[str, Any] = {"bytes_read": 0, "bytes_written": 0}
        if not path.exists() and not later:
            with DatasetWriter(path, job=self.job | {"layer": plan.number}, progress=self._progress) as hidden:
                writers: dict[str, dict[str, TableWriter]] = {}
                for ntype, of in plan.types.items():
                    hidden.add_nodes(self.dataset.num_nodes(ntype), ntype)
                    name = f"{HIDDEN}-{plan.number}"
                    table = hidden.features(dtype_name(of.trial.dtype), of.trial.dim, ntype, name)
                    writers[ntype] = {HIDDEN: table}
                facts = self._sweep(plan, maker, tables, writers, last=False)
        if plan.number:
            shutil.rmtree(writer.work / f"layer-{plan.number - 1}", ignore_errors=True)
        if not path.exists():
            return {}, facts  # a later layer is there, and this one is not read again
        done = open_dataset(path)
        return {ntype: done.feature_table(ntype, f"{HIDDEN}-{plan.number}") for ntype in plan.types}, facts

    def _final_layer(
        self, writer: DatasetWriter, plan: LayerPlan, maker: TileMaker, tables: dict[str, RowTable]
    ) -> dict[str, Any]:
        writers: dict[str, dict[str, TableWriter]] = {}
        for ntype, of in plan.types.items():
            writer.add_nodes(self.dataset.num_nodes(ntype), ntype)
            writers[ntype] = {
                name: writer.features(dtype_name(kind), dim, ntype, name)
                for name, (dim, kind) in self._final_kinds(of.trial.dim, of.trial.dtype).items()
            }
            ids = self.dataset.original_ids(ntype)
            if ids is not None:
                copy_rows(ids, writer.original_ids(ntype))
        return self._sweep(plan, maker, tables, writers, last=True)

    def _sweep(
        self,
        plan: LayerPlan,
        maker: TileMaker,
        tables: dict[str, RowTable],
        writers: Mapping[str, Mapping[str, TableWriter]],
        *,
        last: bool,
    ) -> dict[str, Any]:
        out_bytes = max(sum(w.table.row_bytes for w in of.values()) for of in writers.values())
        room = self.budget - self.standing_bytes
        need = largest_need(self.dataset, plan, maker, self.edge_tables, out_bytes, room)
        memory = divide(self.ledger, self.standing_bytes, need, plan.number)
        total, written = SweepFacts(), 0
        with ExitStack() as stack:
            dtypes = {ntype: plan.inputs[ntype].dtype for ntype in tables}
            nodes = {ntype: stack.enter_context(RowReader(t, self._storage)) for ntype, t in tables.items()}
            edges = {etype: stack.enter_context(RowReader(t, self._storage)) for etype, t in self.edge_tables.items()}
            sources = Sources(nodes, edges, dtypes)
            for ntype, of in plan.types.items():
                finish = self._finish_rows if last else (lambda rows: {HIDDEN: rows})
                sweep = LayerSweep(
                    self.layers[plan.number],
                    plan.number,
                    maker,
                    sources,
                    memory,
                    self.ledger,
                    of.trial,
                    finish,
                    writers[ntype],
                )
                found = sweep.run(ntype, of.bounds)
                written += found.rows * sum(w.table.row_bytes for w in writers[ntype].values())
                total.add(found)
            bytes_read = sources.bytes_read()
        facts = vars(total) | {"bytes_read": bytes_read, "bytes_written": written}
        return facts | {"block_bytes": memory.rows, "tile": {ntype: of.tile for ntype, of in plan.types.items()}}
