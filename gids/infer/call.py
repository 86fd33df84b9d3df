"""What a user calls: gids.infer(model, dataset, out)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gids.dataset import Dataset
from gids.dataset.table_writer import Progress
from gids.infer.run import Inference, InferOptions
from gids.sampling.sampler import Fanout
from gids.storage import StorageOptions


def infer(
    model: Any,
    dataset: Dataset | str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    budget: int | str | None = None,
    features: str | Mapping[str, str] = "feat",
    edge_features: str | None = None,
    edge_weights: bool = False,
    fanouts: Sequence[Fanout] | None = None,
    seed: int = 0,
    scan: bool = False,
    nodes: Sequence[str] | None = None,
    name: str = "embedding",
    dtype: str | None = None,
    rows: bool = True,
    top_k: int | None = None,
    tile: int | None = None,
    device: torch.device | str = "cpu",
    device_budget: int | str | None = None,
    storage: StorageOptions | str | None = None,
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
        One of :mod:`gids.models`, a module with ``inference_layers()``, or functions of (block, rows); layers of DGL and
        PyG as :class:`gids.dgl.ConvLayer` and :class:`gids.pyg.ConvLayer`. See docs/inference.md.
    dataset : Dataset or path-like
        Graph and features.
    out : path-like, optional
        Dataset to make; it appears when everything is on disk. Without it the results become tables of ``dataset``.
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
    scan : bool
        Read the table in order and add rows to sums as they pass by, part of the destinations after part, instead of
        reading what each tile needs: far fewer bytes on a graph without locality. For layers that take the sum or the
        mean of their neighbours' rows; those are then added in the order of their ids.
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
        Destinations that a layer computes in one call; by default by the graph and the size of rows. Smaller ones need
        less memory. Matrix products of few rows may add in another order.
    device : torch.device or str
        ``"cpu"`` or ``"cuda"``: where tiles are sampled, cached and computed; the model must be there.
    device_budget : int or str, optional
        With ``device="cuda"``: device memory, as for :class:`gids.MemoryOptions`.
    storage : StorageOptions or str, optional
        How rows are read; a string names the engine.
    overwrite : bool
        Replace an existing dataset at the end; without ``out``, tables of that name.
    stripe_dirs : sequence of path-like
        Directories that the results are spread over, one for each drive.
    progress : callable, optional
        Called as ``progress(table, bytes_done, bytes_total)``.

    Returns
    -------
    Dataset
        With the table ``name`` of each node type, and its original ids where the nodes were relabelled.
    """
    options = InferOptions(
        budget=budget,
        features=features,
        edge_features=edge_features,
        edge_weights=edge_weights,
        fanouts=fanouts,
        seed=seed,
        scan=scan,
        nodes=nodes,
        name=name,
        dtype=dtype,
        rows=rows,
        top_k=top_k,
        tile=tile,
        device=device,
        device_budget=device_budget,
        storage=storage,
        overwrite=overwrite,
        stripe_dirs=stripe_dirs,
        progress=progress,
    )
    return Inference(model, dataset, out, options).run()
