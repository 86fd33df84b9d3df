"""Batches sampled by DGL, as a user of its DataLoader has them; where their rows come from is left to subclasses."""

from __future__ import annotations

import importlib.util
from abc import abstractmethod
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from experiments.baselines.contender import Contender
from experiments.baselines.job import Job, Prepared
from gids.sampling import Block, SampleKey, Topology
from gids.sampling.sample import EDGE, NODE


class DglSampled(Contender):
    """DGL's NeighborSampler over the graph in memory. DGL has no LADIES: those batches come from our sampler."""

    @classmethod
    def unavailable(cls, job: Job) -> str:
        if job.ladies is None and importlib.util.find_spec("dgl") is None:
            return "dgl is not installed: dgl==1.1.3, whose wheels are for Python 3.10 and 3.11, works with this torch"
        return ""

    def __init__(self, job: Job):
        super().__init__(job)
        if job.ladies is None:
            import dgl

            table = self.dataset.indices_table()
            stripe = table.stripes[0]
            sources = np.fromfile(stripe.path, table.dtype, table.num_rows, offset=stripe.data_offset)
            indices = torch.from_numpy(sources)
            indptr = torch.from_numpy(np.array(self.dataset.indptr())).to(indices.dtype)
            csc = ("csc", (indptr, indices, torch.empty(0, dtype=indices.dtype)))
            self._graph = dgl.graph(csc, num_nodes=self.dataset.num_nodes())
            # DGL 1.1.3's fused sampler carries ids from batch to batch on int32 graphs: half of the nodes go missing.
            self._sampler = dgl.dataloading.NeighborSampler(job.fanouts, fused=False)
            self._seed = dgl.seed
        else:
            self._topology = Topology.from_dataset(self.dataset)
        self._labels = self.dataset.labels()

    def batches(self, epoch: int, count: int, rows: int | None = None) -> Iterator[Prepared]:
        order = self.job.order(self.dataset, epoch)
        if self.job.ladies is None:
            self._seed(self.job.seed + epoch)
        for index in range(count):
            seeds = order[index].seeds[NODE]
            with self.stage("sampling"):
                nodes, layers = self._sample(seeds, epoch, index)
            nodes = nodes[:rows]
            with self.stage("features"):
                x = self.rows(nodes)
            yield Prepared(index, nodes, x, layers, None if self._labels is None else self._labels[seeds])

    def _sample(self, seeds: Tensor, epoch: int, index: int) -> tuple[Tensor, list[Block]]:
        if self.job.ladies is not None:
            key = SampleKey(self.job.seed, epoch, index)
            sample = self.job.sampler().sample(self._topology, seeds, key)
            return sample.input_nodes[NODE], sample.blocks
        nodes, _, blocks = self._sampler.sample(self._graph, seeds.to(self._graph.idtype))
        layers = []
        for block in blocks:
            indptr, src, _ = block.adj_tensors("csc")
            sizes = {NODE: block.num_src_nodes()}, {NODE: block.num_dst_nodes()}
            layers.append(Block(*sizes, {EDGE: indptr.long()}, {EDGE: src.long()}))
        return nodes.long(), layers

    @abstractmethod
    def rows(self, nodes: Tensor) -> Tensor:
        """Return the features of ``nodes``."""
