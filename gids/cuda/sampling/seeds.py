"""What a batch on a device begins with: nodes, or edges whose negatives are drawn there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gids import _native
from gids.cuda.array import DeviceArray
from gids.cuda.session import Session
from gids.sampling.sample import EdgeType, SampleKey
from gids.sampling.seeds import EdgeSeeds, as_ids, excluded_pairs
from gids.sampling.topology import Topology

NEIGHBORS, LAYER, NEGATIVES = 1, 2, 3  # Stream of kernels/philox.cuh


def random_key(key: SampleKey, layer: int, relation: int, stream: int) -> tuple[np.uint32, np.uint32]:
    """Return two words for one layer and relation of a batch, as kernels take them."""
    words = _native.random_key(key.seed, key.epoch, key.batch, layer, relation, stream)
    return np.uint32(words[0]), np.uint32(words[1])


@dataclass(frozen=True)
class DeviceSeeds:
    """Seeds as the samplers of a device take them.

    Attributes
    ----------
    nodes : dict of str to int64 array
        By node type; types without seeds are missing.
    excluded : dict of EdgeType to int64 array of shape [n, 2]
        Edges that blocks leave out, as (destination, source) in ascending order.
    edges : EdgeSeeds, optional
        What the nodes came from.
    """

    nodes: Mapping[str, DeviceArray]
    excluded: Mapping[EdgeType, DeviceArray]
    edges: EdgeSeeds | None = None


@dataclass(frozen=True)
class DeviceSeedEdges:
    """The pairs of a link-prediction batch, as :class:`gids.sampling.SeedEdges`, with arrays on the device."""

    src: DeviceArray
    dst: DeviceArray
    labels: DeviceArray


def place_seeds(
    session: Session, graph: Topology, seeds: Mapping[str, DeviceArray] | EdgeSeeds, key: SampleKey
) -> DeviceSeeds:
    """Bring seeds to the device; of edges, draw the negatives there."""
    if not isinstance(seeds, EdgeSeeds):
        return DeviceSeeds(seeds, {})
    source, _, destination = graph.only(seeds.etype)
    src, dst = as_ids(seeds.src), as_ids(seeds.dst)
    before = len(src) if source == destination else 0
    drawn = len(src) * seeds.negatives
    ends = session.empty(before + len(dst) + drawn, np.int64)
    nodes = {source: session.upload(src), destination: ends}
    if before:
        session.copy(ends[:before], session.upload(src))
    session.copy(ends[before : before + len(dst)], session.upload(dst))
    now = graph.renamed(destination) if drawn else None
    if now is not None:
        # Of a relabelled graph the former ids are drawn, as on the CPU; their new ones are looked up there.
        former = _native.draw_negatives(
            len(src), seeds.negatives, graph.num_nodes[destination], key.seed, key.epoch, key.batch
        )
        session.copy(ends[before + len(dst) :], session.upload(now[former]))
    elif drawn:
        session.launch(
            "draw_negatives", drawn, *random_key(key, 0, 0, NEGATIVES), np.int64(len(src)), np.int64(seeds.negatives),
            np.int64(graph.num_nodes[destination]), ends[before + len(dst) :],
        )  # fmt: skip
    excluded = {}
    for etype, (sources, destinations) in excluded_pairs(graph, seeds).items():
        if len(sources):
            order = np.lexsort((sources, destinations))
            excluded[etype] = session.upload(np.stack([destinations[order], sources[order]], axis=1))
    return DeviceSeeds(nodes, excluded, seeds)


def pair_rows(session: Session, graph: Topology, edges: EdgeSeeds, rows: Mapping[str, DeviceArray]) -> DeviceSeedEdges:
    """Say which rows of the seed nodes each positive and negative pair connects."""
    source, _, destination = graph.only(edges.etype)
    count = len(edges.src)
    pairs = count * (1 + edges.negatives)
    src, labels = session.empty(pairs, np.int64), session.empty(pairs, np.float32)
    if pairs:
        session.launch("pair_seeds", pairs, rows[source], np.int64(count), np.int64(edges.negatives), src, labels)
    ends = rows[destination][count:] if source == destination else rows[destination]
    return DeviceSeedEdges(src, ends, labels)
