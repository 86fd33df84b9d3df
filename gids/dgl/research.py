"""The names and arguments of the GIDS research code, on top of this library: ``(input_nodes, seeds, blocks, feats)``.

The research code addresses raw drives; here features are in a dataset, so ``dataset=`` is the one new argument and
those that describe raw drives are accepted and not used. What each of the others becomes is said below.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from gids.budget.parts import host_bytes
from gids.dataset import Dataset
from gids.dgl.dataloader import DataLoader
from gids.errors import ConfigError
from gids.loader.graph import as_dataset
from gids.runtime.options import MemoryOptions, PipelineOptions
from gids.table import DTYPES

_GIB = 1 << 30


class GIDS:
    """Settings of the feature cache, as the research code takes them.

    Parameters
    ----------
    page_size, off, num_ele, ssd_list, set_associative_cache, num_ways, ctrl_idx : any
        Describe raw drives and a page cache; a dataset knows its own layout. Accepted, not used.
    cache_dim : int
        Values in a feature row; must be that of the table.
    num_ssd : int
        Drives, for :meth:`set_required_storage_access`.
    cache_size : float
        Memory of the cache in GiB.
    window_buffer, wb_size : bool, int
        Let the cache see the next ``wb_size`` batches and keep what they reuse (the paper's policy, ``gids``); otherwise
        it evicts at random, as BaM.
    accumulator_flag : bool
        Read several batches together, so many that they have the accesses that :meth:`set_required_storage_access`
        computed, or that the drives' curve asks for where it was not called. Otherwise every batch is read by itself.
    long_type : bool
        Rows are int64 rather than float32; must fit the table.
    heterograph, heterograph_map : bool, dict
        Whether the graph has several node types. Offsets of types come from the dataset; a map is accepted, not used.
    dataset : Dataset or path
        Where the features are.
    feature : str
        Name of the feature table.
    budget : int, str or None
        Memory for everything, the cache and the CPU buffer included; by default half of what is available.
    """

    def __init__(
        self,
        page_size: int = 4096,
        off: int = 0,
        cache_dim: int = 1024,
        num_ele: int = 300 * 1000 * 1000 * 1024,
        num_ssd: int = 1,
        ssd_list: list[int] | None = None,
        cache_size: float = 10,
        ctrl_idx: int = 0,
        window_buffer: bool = False,
        wb_size: int = 8,
        accumulator_flag: bool = False,
        long_type: bool = False,
        heterograph: bool = False,
        heterograph_map: Mapping[str, int] | None = None,
        set_associative_cache: bool = True,
        num_ways: int = 4,
        *,
        dataset: Dataset | str | os.PathLike[str],
        feature: str = "feat",
        budget: int | str | None = None,
    ):
        self.dataset = as_dataset(dataset)
        self.feature = feature
        self.page_size, self.num_ssd, self.cache_size = page_size, num_ssd, cache_size
        self.window_buffering_flag, self.wb_size = window_buffer, wb_size
        self.accumulator_flag = accumulator_flag
        self.heterograph = heterograph
        self.required_accesses = 0.0
        self._budget = budget
        self._host_rows: dict[str, Tensor] = {}
        self._host_limit: int | None = None
        self._loader: GIDS_DGLDataLoader | None = None
        if cache_size < 0:
            raise ConfigError(f"cache_size must not be negative (got {cache_size})")
        if heterograph != (len(self.dataset.node_types) > 1):
            types = ", ".join(self.dataset.node_types)
            raise ConfigError(f"heterograph must be {not heterograph} for a dataset with node types {types}")
        for ntype in self._types():
            self._check_table(ntype, cache_dim, long_type)

    def _types(self) -> list[str]:
        return [ntype for ntype in self.dataset.node_types if self.feature in self.dataset.feature_names(ntype)]

    def _check_table(self, ntype: str, cache_dim: int, long_type: bool) -> None:
        table = self.dataset.feature_table(ntype, self.feature)
        if table.dim != cache_dim:
            raise ConfigError(f"cache_dim must be {table.dim}, that of {table.name} (got {cache_dim})")
        if DTYPES[table.dtype].is_floating_point == long_type:
            raise ConfigError(f"long_type must be {not long_type} for {table.name} of {table.dtype}")

    def cpu_backing_buffer(self, dim: int, length: int) -> None:
        """Allow rows in the host buffer; :meth:`set_cpu_buffer` says which.

        Parameters
        ----------
        dim : int
            Values in a row; a dataset knows its own.
        length : int
            Most rows.
        """
        self._host_limit = length

    def set_cpu_buffer(self, ten: Tensor, N: int) -> None:
        """Keep the rows of the first nodes of a ranking in host memory.

        Parameters
        ----------
        ten : Tensor
            Nodes, hottest first. On a heterograph they are counted over all types, in the dataset's order of types.
        N : int
            How many of them.
        """
        if self._host_limit is not None and self._host_limit < N:
            raise ConfigError(f"N must be at most the {self._host_limit} rows of cpu_backing_buffer (got {N})")
        ids, begin = ten[:N].to("cpu", torch.int64), 0
        for ntype in self.dataset.node_types:
            end = begin + self.dataset.num_nodes(ntype)
            mine = ids[(ids >= begin) & (ids < end)] - begin
            if len(mine) and ntype in self._types():
                self._host_rows[ntype] = mine
            begin = end

    def set_required_storage_access(self, bw: float, l_ssd: float, l_system: float, num_ssd: int, p: float) -> None:
        """Compute how many accesses a group of batches must have for a share of the drives' peak (equations 2 and 3).

        Parameters
        ----------
        bw : float
            Peak of one drive, in GB/s.
        l_ssd, l_system : float
            Latencies of drive and system, in microseconds.
        num_ssd : int
            Drives.
        p : float
            Share of the peak to reach.
        """
        if not 0 < p < 1:
            raise ConfigError(f"p must be in (0, 1) (got {p})")
        self.required_accesses = p * bw * 1024 / self.page_size * (l_ssd + l_system) * num_ssd / (1 - p)

    def memory_options(self) -> MemoryOptions:
        """Return what this library calls it: cache, policy, and the rows of the CPU buffer as scores."""
        host_buffer, scores = 0, {}
        for ntype, rows in self._host_rows.items():
            table = self.dataset.feature_table(ntype, self.feature)
            host_buffer += host_bytes(len(rows), table.row_bytes)
            scores[ntype] = torch.zeros(self.dataset.num_nodes(ntype), dtype=torch.float32)
            scores[ntype][rows] = torch.arange(len(rows), 0, -1, dtype=torch.float32)
        return MemoryOptions(
            cache=int(self.cache_size * _GIB),
            host_buffer=host_buffer,
            policy="gids" if self.window_buffering_flag else "random",
            host_rank=scores or None,
        )

    def pipeline_options(self) -> PipelineOptions:
        """Return what this library calls it: the window, and how many accesses a group has."""
        required = math.ceil(self.required_accesses) or None
        return PipelineOptions(
            window=self.wb_size if self.window_buffering_flag else 0,
            sweep_batches=None if self.accumulator_flag else 1,
            accesses=required if self.accumulator_flag else None,
        )

    def print_stats(self) -> None:
        """Print where rows came from."""
        tables = {} if self._loader is None else self._loader.stats().tables
        for name, t in tables.items():
            print(
                f"{name}: {t.requests} rows, {t.cache} from the cache, {t.host} from the CPU buffer, {t.disk} from "
                f"storage in {t.reads} reads, {t.duplicates} shared within a group"
            )


class GIDS_DGLDataLoader(DataLoader):
    """Yields ``(input_nodes, seeds, blocks, feats)``; ``feats`` is a dict by node type on a heterograph.

    Parameters
    ----------
    graph, indices, graph_sampler, batch_size, device, use_ddp, ddp_seed, drop_last, shuffle, use_alternate_streams
        As in :class:`gids.dgl.DataLoader`.
    dim : int
        Values in a feature row; must be that of the table.
    GIDS : GIDS
        The settings.
    **kwargs
        As in :class:`gids.dgl.DataLoader`.
    """

    def __init__(
        self,
        graph: Any,
        indices: Any,
        graph_sampler: Any,
        batch_size: int,
        dim: int,
        GIDS: GIDS,
        device: Any = None,
        use_ddp: bool = False,
        ddp_seed: int = 0,
        drop_last: bool = False,
        shuffle: bool = False,
        use_alternate_streams: bool | None = None,
        **kwargs: Any,
    ):
        for ntype in GIDS._types():
            table = GIDS.dataset.feature_table(ntype, GIDS.feature)
            if table.dim != dim:
                raise ConfigError(f"dim must be {table.dim}, that of {table.name} (got {dim})")
        super().__init__(
            graph,
            indices,
            graph_sampler,
            device=device,
            use_ddp=use_ddp,
            ddp_seed=ddp_seed,
            batch_size=batch_size,
            drop_last=drop_last,
            shuffle=shuffle,
            use_alternate_streams=use_alternate_streams,
            gids=GIDS.dataset,
            input_features=GIDS.feature,
            budget=GIDS._budget,
            memory=GIDS.memory_options(),
            pipeline=GIDS.pipeline_options(),
            **kwargs,
        )
        self.GIDS_Loader = GIDS
        self._wait_s = 0.0
        GIDS._loader = self

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch."""
        return self._timed(super().__iter__())

    def _timed(self, batches: Iterator[Any]) -> Iterator[Any]:
        while True:
            begin = time.perf_counter()
            batch = next(batches, None)
            self._wait_s += time.perf_counter() - begin
            if batch is None:
                return
            yield batch

    def print_stats(self) -> None:
        """Print where rows came from."""
        self.GIDS_Loader.print_stats()

    def print_timer(self) -> None:
        """Print how long the training loop waited for batches, and begin to count anew."""
        print(f"waited for batches: {self._wait_s:.3f} s")
        self._wait_s = 0.0
