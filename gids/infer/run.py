"""gids.infer: run a model over every node of a dataset, layer by layer, with everything large on disk."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from gids._native import ThreadPool
from gids.budget import default_budget
from gids.dataset import Dataset, DatasetWriter, TableWriter, open_dataset
from gids.dataset.build import safe_name
from gids.dataset.extend import add_features, check_addable
from gids.dataset.manifest import MANIFEST
from gids.dataset.table_writer import Progress, dtype_name
from gids.dataset.writer import copy_rows
from gids.errors import ConfigError, DatasetError
from gids.infer.feed import Graph
from gids.infer.inorder import InOrderSweep
from gids.infer.layers import ConvLayer, LayerFunction, check_device, compute_device, digest_of, evaluating, layers_of
from gids.infer.results import HIDDEN, Results
from gids.infer.scan import ScanSweep, check_scan
from gids.infer.schedule import LayerPlan, RowKind, kinds_of, needed_types, plan_layer
from gids.infer.sweep import LayerSweep, SweepFacts
from gids.infer.tiles import check_weights, count_in_degrees, count_out_degrees, degrees_bytes, far_uses
from gids.loader.graph import as_dataset, open_topology
from gids.partition.stored import load, save, stored_names
from gids.runtime.options import MemoryOptions, OutputOptions, PipelineOptions, RuntimeOptions
from gids.sampling import Topology
from gids.sampling.sampler import Fanout, check_fanouts
from gids.storage import StorageOptions
from gids.table import RowTable
from gids.types import EdgeType
from gids.units import format_bytes, parse_bytes

#: Attributes by which a layer asks for degrees in the whole graph, and what counts them.
NEEDS_DEGREES = {"needs_out_degrees": count_out_degrees, "needs_in_degrees": count_in_degrees}


@dataclass(frozen=True)
class InferOptions:
    """What is computed of which tables, and how; see :func:`gids.infer.infer`."""

    budget: int | str | None = None
    features: str | Mapping[str, str] = "feat"
    edge_features: str | None = None
    edge_weights: bool = False
    fanouts: Sequence[Fanout] | None = None
    seed: int = 0
    scan: bool = False
    nodes: Sequence[str] | None = None
    name: str = "embedding"
    dtype: str | None = None
    rows: bool = True
    top_k: int | None = None
    tile: int | None = None
    device: torch.device | str = "cpu"
    device_budget: int | str | None = None
    storage: StorageOptions | str | None = None
    overwrite: bool = False
    stripe_dirs: Sequence[str | os.PathLike[str]] = ()
    progress: Progress | None = None


class Inference:
    """One job.

    Parameters
    ----------
    model, dataset, out
        As in :func:`gids.infer.infer`.
    options : InferOptions
        Everything else.

    Attributes
    ----------
    facts : dict
        After :meth:`run`: bytes read and written, seconds and memory, by layer.
    """

    def __init__(
        self,
        model: Any,
        dataset: Dataset | str | os.PathLike[str],
        out: str | os.PathLike[str] | None = None,
        options: InferOptions | None = None,
    ):
        self.options = given = InferOptions() if options is None else options
        self.dataset, self.model = as_dataset(dataset), model
        self._added = out is None
        self.out = self.dataset.path / f".{safe_name(given.name)}.added" if out is None else Path(out).absolute()
        self.device = torch.device(given.device)
        check_device(model, self.device)
        self.layers: list[LayerFunction] = layers_of(model)
        self.budget = default_budget() if given.budget is None else parse_bytes(given.budget, "budget")
        self.fanouts: list[Fanout] = [-1] * len(self.layers) if given.fanouts is None else check_fanouts(given.fanouts)
        if len(self.fanouts) != len(self.layers):
            raise ConfigError(f"fanouts must be one for each of {len(self.layers)} layers (got {len(self.fanouts)})")
        if given.edge_weights:
            check_weights(self.dataset, self.dataset.edge_types, self.fanouts)
        if given.scan:
            drawn = any(fanout != -1 for fanout in self.fanouts)
            elsewhere = self.device.type != "cpu"
            edges = {"edge_features": given.edge_features is not None, "edge_weights": given.edge_weights}
            check_scan(self.dataset, self.layers, edges | {"fanouts": drawn, "another device": elsewhere})
        if given.tile is not None and given.tile < 1:
            raise ConfigError(f"tile must be at least 1 (got {given.tile})")
        self.results = Results(given.name, given.dtype, given.rows, given.top_k)
        self.nodes = self._output_types(given.nodes)
        self.tables = self._feature_tables(given.features)
        self.edge_tables = self._edge_feature_tables(given.edge_features)
        self.weight_tables: dict[EdgeType, RowTable] = {}
        for etype in self.dataset.edge_types if given.edge_weights else ():
            table = self.dataset.edge_weight_table(etype)
            assert table is not None  # as checked above
            self.weight_tables[etype] = table
        half = (torch.float16, torch.bfloat16)
        read = [*self.tables.values(), *self.edge_tables.values()]
        widen = any(table.torch_dtype in half for table in read)
        if widen and any(table.torch_dtype == torch.float64 for table in read):
            raise ConfigError("features must not mix float64 with half precision (got both)")
        self.runtime_options = RuntimeOptions(
            budget=self.budget,
            # A row is kept from its first use on, by how often it will be asked for again; none is read beforehand.
            memory=MemoryOptions(
                topology="disk" if given.scan or self.in_order else None,
                topology_budget=0 if given.scan or self.in_order else None,  # edges are read in order
                device_budget=given.device_budget,
                host_buffer=0,
                popularity=True,
            ),
            pipeline=PipelineOptions(),
            storage=given.storage,
            output=OutputOptions(labels=False, dtype=torch.float32 if widen else None),
            device=self.device if self.device.type == "cuda" else None,
        )
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
    def in_order(self) -> bool:
        """Whether tiles are visited in order by :class:`InOrderSweep`: all in-edges of one type, their rows alone, on the CPU."""
        whole_lists = all(fanout == -1 for fanout in self.fanouts)
        one_type = len(self.dataset.node_types) == 1 and len(self.dataset.edge_types) == 1
        rows_alone = not self.edge_tables and not self.weight_tables
        return whole_lists and one_type and rows_alone and self.device.type == "cpu" and not self.options.scan

    @property
    def job(self) -> dict[str, Any]:
        """What decides the rows of every layer: a killed run is continued by an equal job only."""
        given = self.options
        return {
            "infer": self.dataset.id,
            "model": digest_of(self.model, self.layers),
            "layers": len(self.layers),
            "features": {ntype: table.name for ntype, table in self.tables.items()},
            "edge_features": sorted(table.name for table in self.edge_tables.values()),
            "edge_weights": given.edge_weights,
            "fanouts": [str(fanout) for fanout in self.fanouts],
            "seed": given.seed,
            "scan": given.scan,
            "nodes": self.nodes,
            "tile": given.tile,
            "device": self.device.type,
        }

    def run(self) -> Dataset:
        """Compute everything and return the finished dataset."""
        begin = time.perf_counter()
        given = self.options
        written = asdict(self.results)
        if self._added:
            check_addable(self.dataset, self.nodes, self.results.names, overwrite=given.overwrite)
            if (self.out / MANIFEST).exists():  # complete, and killed before it was added
                made = open_dataset(self.out)
                if made.attributes["inference"] == json.loads(json.dumps(self.job | {"results": written})):
                    return self._add(made)
        writer = DatasetWriter(
            self.out,
            overwrite=given.overwrite or self._added,
            job=self.job | {"results": written, "stripe_dirs": [str(home) for home in given.stripe_dirs]},
            stripe_dirs=given.stripe_dirs,
            attributes={"inference": self.job | {"results": written}},
            progress=given.progress,
        )
        with writer, evaluating(self.model), Opened(self) as opened:
            self._require_space(opened.plans)
            tables, layer_facts = self.tables, []
            for number, plan in enumerate(opened.plans):
                began = time.perf_counter()
                if number == len(opened.plans) - 1:
                    facts = self._final_layer(writer, opened, plan, tables)
                else:
                    tables, facts = self._hidden_layer(writer, opened, plan, tables)
                layer_facts.append(asdict(facts) | {"seconds": time.perf_counter() - began})
            dataset = writer.finish()
        if self._added:
            dataset = self._add(dataset)
        self.facts = {"seconds": time.perf_counter() - begin, "layers": layer_facts, "budget_bytes": self.budget}
        for what in ("bytes_read", "edge_bytes_read", "bytes_written"):
            self.facts[what] = sum(facts[what] for facts in layer_facts)
        return dataset

    def _add(self, made: Dataset) -> Dataset:
        """Make the results tables of the dataset; its partitions, which name it by its contents, go with it."""
        parts = {name: load(self.dataset, name) for name in stored_names(self.dataset)}
        dataset = add_features(self.dataset, made, overwrite=self.options.overwrite)
        for name, partition in parts.items():
            save(dataset, replace(partition, dataset_id=dataset.id), name, overwrite=True)
        return dataset

    def _require_space(self, plans: list[LayerPlan]) -> None:
        """Refuse a disk on which the largest two layers in a row do not fit, beside what is there already."""
        sizes = [self.layer_bytes(plan) for plan in plans]
        if self.options.stripe_dirs:  # of which TableWriter says what they lack; the layers between are here
            sizes[-1] = 0
        most = max(sum(sizes[max(0, number - 1) : number + 1]) for number in range(len(sizes)))
        partial = self.out.parent / f".{self.out.name}.partial"
        there = sum(path.stat().st_blocks * 512 for path in partial.rglob("*") if path.is_file())
        free = shutil.disk_usage(self.out.parent).free
        if most - there > free:
            raise DatasetError(
                f"layers and results need {format_bytes(most - there)} on the disk of {self.out.parent}, which has "
                f"{format_bytes(free)} free: free some space and run the command again"
            )

    def results_of(self, plan: LayerPlan) -> Results:
        """Return what is written of a layer."""
        return self.results if plan.number == len(self.layers) - 1 else Results(f"{HIDDEN}-{plan.number}")

    def layer_bytes(self, plan: LayerPlan) -> int:
        """Return the bytes that a layer writes."""
        results = self.results_of(plan)
        return sum(
            self.dataset.num_nodes(ntype) * results.row_bytes(of.trial.dim, of.trial.dtype)
            for ntype, of in plan.types.items()
        )

    def _writers(self, writer: DatasetWriter, plan: LayerPlan) -> dict[str, dict[str, TableWriter]]:
        results, writers = self.results_of(plan), {}
        for ntype, of in plan.types.items():
            writer.add_nodes(self.dataset.num_nodes(ntype), ntype)
            kinds = results.kinds(of.trial.dim, of.trial.dtype)
            writers[ntype] = {
                name: writer.features(dtype_name(kind), dim, ntype, name) for name, (dim, kind) in kinds.items()
            }
        return writers

    def _hidden_layer(
        self, writer: DatasetWriter, opened: Opened, plan: LayerPlan, tables: dict[str, RowTable]
    ) -> tuple[dict[str, RowTable], SweepFacts]:
        """Compute a layer into a dataset of its own among the work files; the one before is then removed."""
        path = writer.work / f"layer-{plan.number}"
        later = any((writer.work / f"layer-{n}").exists() for n in range(plan.number + 1, len(self.layers)))
        facts = SweepFacts()
        if not path.exists() and not later:
            job = self.job | {"layer": plan.number}
            with DatasetWriter(path, job=job, progress=self.options.progress) as hidden:
                facts = opened.sweep(plan, tables).run(self._writers(hidden, plan))
        if plan.number:
            shutil.rmtree(writer.work / f"layer-{plan.number - 1}", ignore_errors=True)
        if not path.exists():
            return {}, facts  # a later layer is there, and this one is not read again
        done = open_dataset(path)
        return {ntype: done.feature_table(ntype, f"{HIDDEN}-{plan.number}") for ntype in plan.types}, facts

    def _final_layer(
        self, writer: DatasetWriter, opened: Opened, plan: LayerPlan, tables: dict[str, RowTable]
    ) -> SweepFacts:
        writers = self._writers(writer, plan)
        for ntype in plan.types:
            ids = self.dataset.original_ids(ntype)
            if ids is not None:
                copy_rows(ids, writer.original_ids(ntype))
        return opened.sweep(plan, tables).run(writers)


@dataclass
class Opened:
    """The graph of a job in memory or on disk, and every layer tried; closed at the end of a ``with``."""

    job: Inference
    plans: list[LayerPlan] = field(default_factory=list)

    def __enter__(self) -> Opened:
        job = self.job
        self._stack = ExitStack()
        self.pool = ThreadPool(len(os.sched_getaffinity(0)), "gids-infer")
        self.topology: Topology = open_topology(job.dataset, job.runtime_options)
        self._stack.callback(self.topology.close)
        try:
            self._scores: dict[str, Any] | None = None
            self._degrees: dict[str, dict[EdgeType, Any]] = {}
            self._count_degrees()
            self._plan_layers()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _count_degrees(self) -> None:
        job = self.job
        asked = {which: any(getattr(layer, which, False) for layer in job.layers) for which in NEEDS_DEGREES}
        if not any(asked.values()):
            return
        if any(fanout != -1 for fanout in job.fanouts):
            raise ConfigError(
                "fanouts must be -1 for layers that need the degrees of the whole graph, such as GCN's "
                f"(got {job.fanouts})"
            )
        size = sum(asked.values()) * degrees_bytes(job.dataset)
        if size > job.budget:
            raise ConfigError(
                f"budget must hold the degrees of every node, {format_bytes(size)} (got {format_bytes(job.budget)})"
            )
        self._degrees = {which: NEEDS_DEGREES[which](job.dataset) for which in asked if asked[which]}

    def _degrees_for(self, layer: LayerFunction, which: str) -> dict[EdgeType, Any] | None:
        return self._degrees.get(which) if getattr(layer, which, False) else None

    def _plan_layers(self) -> None:
        job, given = self.job, self.job.options
        needed = needed_types(job.dataset, job.nodes, len(job.layers))
        kinds = kinds_of(job.tables)
        for number, layer in enumerate(job.layers):
            with torch.inference_mode():
                plan = plan_layer(
                    job.dataset,
                    self.topology,
                    layer,
                    number,
                    job.fanouts[number],
                    kinds,
                    needed[number + 1],
                    edge_tables=job.edge_tables,
                    weights=given.edge_weights,
                    tile=given.tile,
                    device=compute_device(job.device),
                )
            self.plans.append(plan)
            kinds = {ntype: RowKind(of.trial.dim, of.trial.dtype) for ntype, of in plan.types.items()}
        for of in self.plans[-1].types.values():
            job.results.kinds(of.trial.dim, of.trial.dtype)  # refuses a top_k that is too large
        for plan in self.plans if given.scan else ():  # every layer is as long as the features
            sweep = self.sweep(plan, job.tables)
            assert isinstance(sweep, ScanSweep)
            sweep.parts(sweep.of_type.tiles)  # refuses a budget that is too small before anything is computed

    def _popular(self) -> dict[str, Any]:
        if self._scores is None:
            nearest = max(of.tile for of in self.plans[0].types.values())
            self._scores = far_uses(self.job.dataset, nearest)
        return self._scores

    def sweep(self, plan: LayerPlan, tables: Mapping[str, RowTable]) -> LayerSweep | InOrderSweep | ScanSweep:
        """Return the computation of a layer over rows of some tables."""
        job, layer = self.job, self.job.layers[plan.number]
        graph = Graph(
            job.dataset,
            self.topology,
            job.fanouts[plan.number],
            job.options.seed,
            len(job.layers) - 1 - plan.number,
            self._degrees_for(layer, "needs_out_degrees"),
            self._popular,
            self._degrees_for(layer, "needs_in_degrees"),
        )
        if job.options.scan:
            assert isinstance(layer, ConvLayer)  # as check_scan found
            (table,) = tables.values()
            return ScanSweep(layer, plan, graph, table, job.results_of(plan), job.runtime_options, self.pool)
        if job.in_order:
            (table,) = tables.values()
            return InOrderSweep(layer, plan, graph, table, job.results_of(plan), job.runtime_options, self.pool)
        return LayerSweep(
            layer,
            plan,
            graph,
            tables,
            job.edge_tables,
            job.weight_tables,
            job.results_of(plan),
            job.runtime_options,
            self.pool,
        )
