"""The names and arguments of the GIDS research code, on top of this library: ``(input_nodes, seeds, blocks, feats)``.

The research code addresses raw drives; here features are in a dataset, so ``dataset=`` is the one new argument and
those that describe raw drives are accepted and not used. What each of the others becomes is said below.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from gids.dataset import Dataset
from gids.dgl.dataloader import DataLoader
from gids.errors import ConfigError
from gids.external import Options
from gids.loader import Fetched, Work
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
        Let the cache see the next ``wb_size`` batches (``policy="window"``); otherwise it evicts at random, as BaM.
    accumulator_flag : bool
        Read several batches together, as many as :meth:`set_required_storage_access` asks for.
    long_type : bool
        Rows are int64 rather than float32; must fit the table.
    heterograph, heterograph_map : bool, dict
        Whether the graph has several node types. Offsets of types come from the dataset; a map is accepted, not used.
    dataset : Dataset or path
        Where the features are.
    feature : str
        Name of the feature table.
    budget : int, str or None
        Memory for everything; None takes what cache, buffers and a fair share for reading need.
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
        self.dataset = Options(dataset).open()
        self.feature = feature
        self.page_size, self.num_ssd, self.cache_size = page_size, num_ssd, cache_size
        self.window_buffering_flag, self.wb_size = window_buffer, wb_size
        self.accumulator_flag = accumulator_flag
        self.heterograph = heterograph
        self.required_accesses = 0.0
        self._budget = budget
        self._host_rows: dict[Any, Tensor] = {}
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
        """Allow ``length`` rows in the host buffer; :meth:`set_cpu_buffer` says which."""
        self._host_limit = length

    def set_cpu_buffer(self, ten: Tensor, N: int) -> None:
        """Keep the rows of the first ``N`` nodes of ``ten`` in host memory (ranked, hottest first).

        On a heterograph ``ten`` counts nodes over all types, in the dataset's order of types.
        """
        if self._host_limit is not None and self._host_limit < N:
            raise ConfigError(f"N must be at most the {self._host_limit} rows of cpu_backing_buffer (got {N})")
        ids, begin = ten[:N].to("cpu", torch.int64), 0
        for ntype in self.dataset.node_types:
            end = begin + self.dataset.num_nodes(ntype)
            mine = ids[(ids >= begin) & (ids < end)] - begin
            if len(mine) and ntype in self._types():
                self._host_rows["node", ntype, self.feature] = mine
            begin = end

    def set_required_storage_access(self, bw: float, l_ssd: float, l_system: float, num_ssd: int, p: float) -> None:
        """Compute how many accesses must be under way for a share ``p`` of the peak (GB/s, microseconds)."""
        if not 0 < p < 1:
            raise ConfigError(f"p must be in (0, 1) (got {p})")
        self.required_accesses = p * bw * 1024 / self.page_size * (l_ssd + l_system) * num_ssd / (1 - p)

    def options(self) -> Options:
        """Give what this library calls it."""
        return Options(
            self.dataset,
            budget=self._budget,
            cache=int(self.cache_size * _GIB),
            policy="window" if self.window_buffering_flag else "random",
            window=self.wb_size if self.window_buffering_flag else 0,
            max_group=8 if self.accumulator_flag else 1,
            host_rows=self._host_rows,
        )

    def print_stats(self) -> None:
        """Print where rows came from."""
        tables = {} if self._loader is None else self._loader.stats()
        for name, t in tables.items():
            print(
                f"{name}: {t.requests} rows, {t.cache} from the cache, {t.host} from the CPU buffer, {t.disk} from "
                f"storage in {t.reads} reads, {t.duplicates} shared within a group"
            )


class GIDS_DGLDataLoader(DataLoader):
    """Yields ``(input_nodes, seeds, blocks, feats)``; ``feats`` is a dict by node type on a heterograph.

    Parameters
    ----------
    graph, indices, graph_sampler, batch_size, device, use_ddp, ddp_seed, drop_last, shuffle, **kwargs
        As in DGL.
    dim : int
        Values in a feature row; must be that of the table.
    GIDS : GIDS
        The settings.
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
            gids=GIDS.options(),
            **kwargs,
        )
        assert self._source is not None
        self._source.warned = True  # features are handed over beside the blocks: nothing need be prefetched
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

    def make_work(self, batch: Any) -> Work:
        """Ask for the rows of all input nodes, whatever the sampler prefetches."""
        work = super().make_work(batch)
        dataset, feature = self.GIDS_Loader.dataset, self.GIDS_Loader.feature
        by_type = batch[0] if isinstance(batch[0], Mapping) else {dataset.node_types[0]: batch[0]}
        rows: dict[Any, Tensor] = dict(work.rows)
        places: dict[Any, Tensor | None] = {}
        for ntype in self.GIDS_Loader._types():
            key, ids = ("node", ntype, feature), by_type.get(ntype, torch.empty(0, dtype=torch.int64)).long()
            asked = rows.setdefault(key, ids)
            # Where the sampler asks for the table in several places its rows are sorted, and these are among them.
            places[key] = None if torch.equal(asked, ids) else torch.searchsorted(asked, ids)
        work.payload, work.rows = (*work.payload, places), rows
        return work

    def finish(self, fetched: Fetched) -> Any:
        """Give DGL's batch with the features as its last part."""
        batch, requests, places = fetched.work.payload
        fetched.work.payload = (batch, requests)
        feats = {
            key[1]: (fetched.rows[key] if place is None else fetched.rows[key][place]).to(self.device)
            for key, place in places.items()
        }
        hetero = isinstance(batch[0], Mapping)
        return (*super().finish(fetched), feats if hetero else next(iter(feats.values())))

    def print_stats(self) -> None:
        """Print where rows came from."""
        self.GIDS_Loader.print_stats()

    def print_timer(self) -> None:
        """Print how long the training loop waited for batches, and begin to count anew."""
        print(f"waited for batches: {self._wait_s:.3f} s")
        self._wait_s = 0.0
