"""LADIES on a device: all in-edges of a layer compete, a fixed number of source nodes is kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gids.cuda.array import DeviceArray
from gids.cuda.passes import compact, full, sort_pairs
from gids.cuda.sampling.counts import Count
from gids.cuda.sampling.hop import DeviceEdges, Hop, random_names
from gids.cuda.sampling.numbering import NodeNumbers
from gids.cuda.sampling.sampler import CudaSampler, Layer, Part, Walk
from gids.cuda.sampling.seeds import LAYER, random_key
from gids.cuda.session import Session
from gids.sampling import LadiesSampler
from gids.sampling.sample import EdgeType

_TIME_LIMIT = 1 << 63  # times are doubles that are not negative: their bits sort as integers


@dataclass(frozen=True)
class _Candidates:
    """The in-edges of one relation with the part of its destination that each carries."""

    edges: DeviceEdges
    candidate: DeviceArray
    part: DeviceArray
    whole: DeviceArray
    num_dst: int


def mass_bits(rows: int) -> int:
    """Compute ``mass_bits()`` of kernels/ladies.cuh."""
    bits = 62
    while bits > 0 and rows >> (62 - bits) > 0:
        bits -= 1
    return bits


class CudaLadiesSampler(CudaSampler):
    """Samples on a device what :class:`gids.sampling.LadiesSampler` samples on the CPU."""

    def __init__(self, sampler: LadiesSampler):
        self.sizes = sampler.sizes
        self.edge_ids = sampler.edge_ids
        self.weighted = sampler.weights

    def _layers(self, walk: Walk) -> list[Layer]:
        session, numbers, hops, layers = walk.session, walk.numbers, walk.hops, []
        for number, size in enumerate(reversed(self.sizes)):
            num_dst = {ntype: walk.counts.exact(count) for ntype, count in walk.sizes().items()}
            candidates = {ntype: NodeNumbers(session, walk.counts, walk.graph.num_nodes[ntype]) for ntype in numbers}
            found = {
                etype: self._collect(walk, hop, numbers[etype[2]].nodes, num_dst[etype[2]], candidates[etype[0]])
                for etype, hop in hops.items()
            }
            bits = mass_bits(sum(num_dst[etype[2]].bound for etype in hops))
            masses = {ntype: full(session, numbering.size, 0) for ntype, numbering in candidates.items()}
            for etype, part in found.items():
                if len(part.candidate):
                    session.launch(
                        "ladies_masses", part.num_dst, part.edges.begins, np.int64(part.num_dst), part.part, part.whole,
                        part.candidate, np.int32(bits), masses[etype[0]], lanes=8,
                    )  # fmt: skip
            chosen, kept, total = {}, {}, {}
            for t, (ntype, numbering) in enumerate(candidates.items()):
                words = random_key(walk.key, number, t, LAYER)
                racing = walk.counts.exact(numbering.count)
                names = random_names(session, walk.origins.get(ntype), numbering.nodes, racing)
                chosen[ntype], kept[ntype], total[ntype] = _choose(
                    session, names, racing.bound, masses[ntype], size, words, walk.graph.num_nodes[ntype]
                )
                own = numbering.find(numbers[ntype].nodes, num_dst[ntype].bound)
                if len(own) and racing.bound:  # destinations are sources in any case
                    session.launch("mark_items", len(own), own, np.int64(len(own)), kept[ntype])
            parts: dict[EdgeType, Part] = {}
            for etype, hop in hops.items():
                src = etype[0]
                parts[etype] = self._keep(
                    session, hop, found[etype], kept[src], masses[src], total[src], max(chosen[src], 1), numbers[src]
                )
            layers.append(Layer(walk.sizes(), dict(num_dst), parts))
        return layers[::-1]

    def _collect(
        self, walk: Walk, hop: Hop, nodes: DeviceArray, num_dst: Count, candidates: NodeNumbers
    ) -> _Candidates:
        session = walk.session
        edges, _ = hop.choose(nodes, num_dst, -1)
        count = walk.counts.exact(edges.count)
        part, whole = session.empty(count.bound, np.uint64), session.empty(num_dst.bound, np.uint64)
        if num_dst.bound:
            factors, positions = hop.weights(edges) if self.weighted else (None, None)
            session.launch(
                "ladies_parts", num_dst.bound, factors, edges.begins, positions, np.int64(num_dst.bound), part, whole,
                lanes=8,
            )  # fmt: skip
        return _Candidates(edges, candidates.add(edges.src, count), part, whole, num_dst.bound)

    def _keep(
        self,
        session: Session,
        hop: Hop,
        found: _Candidates,
        kept: DeviceArray,
        masses: DeviceArray,
        total: DeviceArray,
        chosen: int,
        numbers: NodeNumbers,
    ) -> Part:
        count = len(found.candidate)
        flags = session.empty(count, np.int64)
        if count:
            session.launch("ladies_flag", count, found.candidate, found.part, kept, np.int64(count), flags)
        edges, before = hop.keep(found.edges, flags, found.edges.src)
        weights = session.empty(edges.count.bound, np.float32)
        if count:
            session.launch(
                "ladies_weights", found.num_dst, found.edges.begins, np.int64(found.num_dst), flags, before,
                found.candidate, found.part, found.whole, masses, total, np.int64(chosen), weights,
            )  # fmt: skip
        return self._part(hop, edges, numbers.add(edges.src, edges.count), weights)


def _choose(
    session: Session,
    names: DeviceArray,
    count: int,
    masses: DeviceArray,
    size: int,
    words: tuple[np.uint32, np.uint32],
    limit: int,
) -> tuple[int, DeviceArray, DeviceArray]:
    """Mark the ``size`` earliest of a race; equal times go by name. Gives how many, the marks, and the sum of masses."""
    kept, total = full(session, count, 0), full(session, 1, 0)
    if count == 0:
        return 0, kept, total
    flags, times = session.empty(count, np.int64), session.empty(count, np.int64)
    session.launch(
        "ladies_race", count, *words, names, masses, np.int64(count), flags,
        times, total,
    )  # fmt: skip
    racers, number = compact(session, flags, full(session, 1, count), count)
    nodes = session.empty(count, np.int64)
    racing = int(session.download(number)[0])
    if racing == 0:
        return 0, kept, total
    session.launch("take_values", racing, names, racers, None, np.int64(racing), nodes)
    _, racers = sort_pairs(session, nodes, racers, number, count, limit)
    ordered = session.empty(count, np.int64)
    session.launch("take_values", racing, times, racers, None, np.int64(racing), ordered)
    _, racers = sort_pairs(session, ordered, racers, number, count, _TIME_LIMIT)
    chosen = min(size, racing)
    session.launch("mark_items", chosen, racers, np.int64(chosen), kept)
    return chosen, kept, total
