"""One batch of a DGL sampler before any epoch, so that a budget is refused when the loader is made, not when it is used."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from typing import Any

import dgl.dataloading
import torch
from dgl.dataloading.dataloader import CollateWrapper
from torch import Tensor

#: Samplers of DGL whose batches depend on nothing but their arguments and the thread's random state.
STATELESS = (dgl.dataloading.NeighborSampler, dgl.dataloading.ShaDowKHopSampler)


def can_sample_first(graph: Any, sampler: Any) -> bool:
    """Whether one more batch changes none of those that follow."""
    inner = getattr(sampler, "sampler", sampler)
    edges = isinstance(sampler, dgl.dataloading.EdgePredictionSampler)
    known = type(inner).__module__.startswith("dgl.") and isinstance(inner, STATELESS)
    # Sampling on a device would make its context here, and in use_uva the graph is pinned only when an epoch begins.
    return known and (edges or inner is sampler) and graph.device.type == "cpu"


def sample_first(graph: Any, sampler: Any, indices: Tensor | Mapping[Any, Tensor], batch_size: int) -> Any:
    """Return the batch of the first seeds, as a worker of DGL's loader returns it.

    It is sampled on a thread of its own, because DGL keeps a random state for each, by a copy of the sampler, and the
    random state of torch, which negative edges are drawn from, is put back: the batches of an epoch stay those of DGL.

    Parameters
    ----------
    graph : DGLGraph
        What is sampled from.
    sampler : dgl.dataloading.Sampler
        One of which :func:`can_sample_first` is true.
    indices : Tensor, or mapping of types to Tensor
        Seeds.
    batch_size : int
        How many of them.
    """
    alone = _alone(sampler)
    batch, failure = None, None

    def run() -> None:
        nonlocal batch, failure
        try:
            with torch.random.fork_rng(devices=[]):
                batch = CollateWrapper(alone.sample, graph, False, torch.device("cpu"))(_seeds(indices, batch_size))
        except BaseException as error:
            failure = error

    thread = threading.Thread(target=run, name="gids-first")
    thread.start()
    thread.join()
    if failure is not None:
        raise failure
    return batch


def _alone(sampler: Any) -> Any:
    alone = copy.copy(sampler)
    if isinstance(sampler, dgl.dataloading.EdgePredictionSampler):
        alone.sampler = _alone(sampler.sampler)
    elif isinstance(sampler, dgl.dataloading.NeighborSampler):
        alone.fused = False  # fused, it works in a map that all copies share
    return alone


def _seeds(indices: Tensor | Mapping[Any, Tensor], batch_size: int) -> Any:
    if isinstance(indices, Tensor):
        return indices[:batch_size]
    wanted, left = {}, batch_size
    for kind, ids in indices.items():
        if left and len(ids):
            wanted[kind] = ids[:left]
            left -= len(wanted[kind])
    return wanted
