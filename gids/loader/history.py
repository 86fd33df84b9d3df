"""Embeddings of the last batches, in place of computing them again: an approximation that a model opts in to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gids.dataset import Dataset
from gids.errors import ConfigError, GidsError
from gids.runtime.options import HistoryOptions, RuntimeOptions
from gids.sampling import HistorySampler, NeighborSampler
from gids.sampling.history import Candidates, HistoryStep
from gids.tiers.rank import Ranking, rank_nodes


class History:
    """Embeddings of some nodes: the inputs of a model's last layer. A loader whose memory has a ``history`` has one.

    A model calls :meth:`exchange` before its last layer. It gets back what it has just computed, for the nodes that the
    sampler expanded, together with stored embeddings for those that it did not, which carry no gradient. Batches must
    be trained in the order they are sampled in; a stored embedding that is missing or too old is an error, never used.

    Parameters
    ----------
    candidates : Candidates
        Nodes whose embeddings are stored.
    dim : int
        Width of the last layer's input.
    dtype : torch.dtype
        What is stored.
    device : torch.device or str, optional
        Where; that of the model.
    name, reason : str
        What ``stats()`` calls it, and why these nodes.

    Examples
    --------
    >>> options = gids.HistoryOptions(dim=256, max_age=8, nodes=0.2)
    >>> loader = gids.Loader(dataset, "train", fanouts=[10, 10], memory=gids.MemoryOptions(history=options))
    >>> for batch in loader:
    ...     logits = model(batch.blocks, batch.x, exchange=lambda h: loader.history.exchange(h, batch))
    """

    def __init__(
        self,
        candidates: Candidates,
        dim: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        name: str = "historical embeddings",
        reason: str = "",
    ):
        if dim < 1:
            raise ConfigError(f"dim must be at least 1 (got {dim})")
        self.dim, self.name, self.reason = dim, name, reason
        slots = candidates.num_slots
        self._table_bytes = candidates.nbytes
        self._rows = {n: torch.zeros(count, dim, dtype=dtype, device=device) for n, count in slots.items()}
        self._stamps = {n: torch.full((count,), -1, dtype=torch.int64) for n, count in slots.items()}
        self.pulled = self.pushed = self.computed = self.age_sum = 0

    @property
    def bytes(self) -> int:
        """Memory of the stored embeddings, their stamps, and the table that finds them."""
        return self._table_bytes + sum(t.nbytes for group in (self._rows, self._stamps) for t in group.values())

    def exchange(self, h: Any, batch: Any) -> Any:
        """Push what was computed, pull what was not, and return the inputs of the last layer.

        Parameters
        ----------
        h : Tensor [n, dim], or dict of str to Tensor
            What the layers before the last have computed: in blocks (gids, DGL) a row for each of their destinations; in
            a subgraph of PyG a row for each node, or for those that ``trim_to_layer`` left.
        batch : Batch, Sample, Data, HeteroData, or what DGL's loader yields (or its blocks)
            As a loader with a history delivers it. Of any other, ``h`` is returned as it is.

        Returns
        -------
        Tensor [inputs of the last layer, dim], or dict of str to Tensor
            In a subgraph of PyG, as many rows as ``h``.
        """
        step = _step_of(batch)
        if step is None:
            return h
        if isinstance(h, Mapping):
            return {ntype: self._exchange(rows, step, ntype) for ntype, rows in h.items()}
        types = [ntype for ntype, count in step.num_inputs.items() if count]
        if len(types) != 1:
            raise ConfigError(f"h must be given by node type where a batch has several (has {types})")
        return self._exchange(h, step, types[0])

    def _exchange(self, h: Tensor, step: HistoryStep, ntype: str) -> Tensor:
        fresh, pulled = step.fresh[ntype], step.pulled[ntype]
        least = step.num_inputs[ntype] if step.whole else len(fresh)
        if h.dim() != 2 or h.shape[1] != self.dim or len(h) < least or (len(h) > least and not step.whole):
            more = " or more rows" if step.whole else ""
            raise ConfigError(f"h of {ntype} must have shape {(least, self.dim)}{more} (got {tuple(h.shape)})")
        self.computed += len(fresh)
        if ntype not in self._rows:
            return h
        rows, stamps = self._rows[ntype], self._stamps[ntype]
        whole = h
        if len(pulled):
            slots = step.pulled_slots[ntype]
            pushed_at = stamps[slots.to(stamps.device)]
            if bool(((pushed_at < step.since) | (pushed_at >= step.stamp)).any()):
                raise GidsError(
                    f"embeddings of {ntype} must have been pushed by batches {step.since & 0xFFFFFFFF} to "
                    f"{(step.stamp & 0xFFFFFFFF) - 1} of this epoch before batch {step.stamp & 0xFFFFFFFF} pulls them: "
                    "train batches in order, and load the history's state when a run is resumed within an epoch"
                )
            self.age_sum += int((step.stamp - pushed_at).sum())
            stored = rows[slots.to(rows.device)].to(device=h.device, dtype=h.dtype)
            if not step.whole:
                whole = h.new_zeros(step.num_inputs[ntype], self.dim).index_copy(0, fresh.to(h.device), h)
            whole = whole.index_copy(0, pulled.to(h.device), stored)
        kept, slots = step.pushed[ntype], step.pushed_slots[ntype]
        kept = fresh[kept] if step.whole else kept
        rows[slots.to(rows.device)] = h.detach()[kept.to(h.device)].to(device=rows.device, dtype=rows.dtype)
        stamps[slots.to(stamps.device)] = step.stamp
        self.pulled += len(pulled)
        self.pushed += len(kept)
        return whole

    def stats(self) -> dict[str, Any]:
        """Return what was exchanged so far. What is trained is approximate, and this says so."""
        return {
            "approximate": True,
            "computed": self.computed,
            "pulled": self.pulled,
            "pushed": self.pushed,
            "pulled_share": self.pulled / max(self.pulled + self.computed, 1),
            "mean_age_batches": self.age_sum / max(self.pulled, 1),
            "nodes": sum(map(len, self._stamps.values())),
            "reason": self.reason,
            "bytes": self.bytes,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return what a run needs to be resumed within an epoch: embeddings and when they were computed."""
        return {
            "rows": {n: t.clone() for n, t in self._rows.items()},
            "stamps": {n: t.clone() for n, t in self._stamps.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state_dict`."""
        for name, own in (("rows", self._rows), ("stamps", self._stamps)):
            for ntype, tensor in own.items():
                given = state[name].get(ntype)
                if given is None or given.shape != tensor.shape:
                    raise ConfigError(f"{name} of {ntype} must have shape {tuple(tensor.shape)} to be loaded")
                tensor.copy_(given)


def _step_of(batch: Any) -> HistoryStep | None:
    if isinstance(batch, list | tuple) and batch:
        return _step_of(batch[-1])  # the blocks of what DGL's loader yields; the last block
    for holder in (batch, getattr(batch, "sample", None)):
        found = getattr(holder, "history", None)
        if isinstance(found, HistoryStep):
            return found
    return None


def open_history(
    dataset: Dataset,
    options: HistoryOptions,
    sampler: NeighborSampler,
    seeds: Mapping[str, Tensor],
    runtime: RuntimeOptions,
) -> tuple[HistorySampler, History]:
    """Return the sampler that leaves out what a history has, in the place of ``sampler``, and the history."""
    if sampler.weights or sampler.disjoint:
        raise ConfigError("history must be given with a sampler without weights, whose seeds share their nodes")
    candidates = choose_candidates(dataset, options, seeds, sampler.fanouts[-1])
    counts = {ntype: dataset.num_nodes(ntype) for ntype in dataset.node_types}
    pruning = HistorySampler(
        sampler.fanouts,
        candidates,
        counts,
        max_age=options.max_age,
        edge_ids=sampler.edge_ids,
        replace=sampler.replace,
    )
    return pruning, make_history(candidates, options, runtime)


def make_history(candidates: Candidates, options: HistoryOptions, runtime: RuntimeOptions) -> History:
    """Return an empty history for candidates."""
    if not runtime.pipeline.in_order:
        raise ConfigError("history must be given with in_order=True: what a batch pulls, an earlier one has pushed")
    return History(
        candidates,
        options.dim,
        dtype=options.dtype,
        device=runtime.device,
        name=str(options),
        reason=options.reason,
    )


def choose_candidates(
    dataset: Dataset, options: HistoryOptions, seeds: Mapping[str, Tensor], last_fanout: Any
) -> Candidates:
    """Return the nodes whose embeddings are stored: the user's, or those that the last layer is expected to need most.

    Parameters
    ----------
    dataset : Dataset
        The graph.
    options : HistoryOptions
        Which nodes, or how many.
    seeds : mapping of str to Tensor[int64]
        Where sampling starts.
    last_fanout : int or mapping of EdgeType to int
        Of the layer nearest the seeds.
    """
    counts = {ntype: dataset.num_nodes(ntype) for ntype in dataset.node_types}
    nodes = options.nodes
    if isinstance(nodes, Mapping):
        return Candidates({ntype: torch.as_tensor(ids).long() for ntype, ids in nodes.items()}, counts)
    if not isinstance(nodes, float | int):
        if len(counts) != 1:
            raise ConfigError(f"nodes must be given by node type where a graph has several (has {list(counts)})")
        return Candidates({next(iter(counts)): torch.as_tensor(nodes).long()}, counts)
    wanted = int(nodes * sum(counts.values()))
    scores = rank_nodes(dataset, seeds, by=Ranking.VISITS.value, fanouts=[last_fanout])
    every = np.concatenate([np.asarray(scores[ntype], np.float64) for ntype in counts])
    order = np.argsort(-every, kind="stable")[:wanted]
    order = np.sort(order[every[order] > 0])
    chosen, first = {}, 0
    for ntype, count in counts.items():
        mine = order[(order >= first) & (order < first + count)] - first
        chosen[ntype] = torch.from_numpy(mine)
        first += count
    return Candidates(chosen, counts)
