"""What the samplers of a device share: seeds in, layers from the seeds outwards, a :class:`DeviceSample` out."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gids.cuda.array import DeviceArray
from gids.cuda.pinned import HostArray
from gids.cuda.sampling.counts import Count, Counts
from gids.cuda.sampling.hop import UNCOUNTED_EDGES, DeviceEdges, Hop
from gids.cuda.sampling.numbering import NodeNumbers
from gids.cuda.sampling.packing import Packed, Packing
from gids.cuda.sampling.seeds import DeviceSeedEdges, pair_rows, place_seeds
from gids.cuda.sampling.topology import PinnedTopology
from gids.cuda.session import Session
from gids.errors import ConfigError
from gids.sampling.sample import EdgeType, SampleKey
from gids.sampling.seeds import EdgeSeeds
from gids.sampling.topology import Topology


@dataclass(frozen=True)
class DeviceBlock:
    """One layer, as :class:`gids.sampling.Block`, with arrays on the device."""

    num_src: dict[str, int]
    num_dst: dict[str, int]
    indptr: dict[EdgeType, DeviceArray]
    src: dict[EdgeType, DeviceArray]
    edge_ids: dict[EdgeType, DeviceArray] | None
    weights: dict[EdgeType, DeviceArray] | None = None


@dataclass(frozen=True)
class DeviceSample:
    """A sampled batch, as :class:`gids.sampling.Sample`, with arrays on the device: views of what ``packed`` has."""

    seeds: dict[str, DeviceArray]
    input_nodes: dict[str, DeviceArray]
    blocks: list[DeviceBlock]
    seed_rows: dict[str, DeviceArray]
    packed: Packed
    edges: DeviceSeedEdges | None = None
    edge_rows: dict[EdgeType, DeviceArray] = field(default_factory=dict)
    edge_places: dict[EdgeType, list[DeviceArray]] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """Edges of one relation in a block, in memory that the next batch uses again."""

    edges: DeviceEdges
    src: DeviceArray  # numbers of the sources
    ids: DeviceArray | None
    weights: DeviceArray | None = None


@dataclass(frozen=True)
class Layer:
    """One block before its sizes are known to the host."""

    num_src: dict[str, Count]
    num_dst: dict[str, Count]
    parts: dict[EdgeType, Part]


@dataclass(frozen=True)
class Walk:
    """A batch that is being sampled: the nodes found so far, and how to go on from them."""

    session: Session
    graph: Topology
    hops: Mapping[EdgeType, Hop]
    numbers: dict[str, NodeNumbers]
    key: SampleKey
    origins: Mapping[str, HostArray]  # by node type, where its nodes were relabelled
    counts: Counts

    def sizes(self) -> dict[str, Count]:
        """Return how many nodes of each type have a number."""
        return {ntype: numbering.count for ntype, numbering in self.numbers.items()}


class CudaSampler(abc.ABC):
    """Samples on a device what a sampler of :mod:`gids.sampling` samples on the CPU, bit for bit."""

    edge_ids: bool = False

    def sample(
        self,
        session: Session,
        topology: PinnedTopology,
        seeds: Mapping[str, DeviceArray] | EdgeSeeds,
        key: SampleKey,
        *,
        uncounted_edges: int = UNCOUNTED_EDGES,
        edge_types: Sequence[EdgeType] = (),
    ) -> DeviceSample:
        """Sample the batch of ``seeds``. Waits once, for the sizes of its arrays, where all layers have a fanout.

        Parameters
        ----------
        session : Session
            Where.
        topology : PinnedTopology
            The graph.
        seeds : mapping of str to DeviceArray[int64], or EdgeSeeds
            Nodes on the device, by type, or edges on the host.
        key : SampleKey
            Names the batch.
        uncounted_edges : int
            Most edges of a layer that memory is taken for before they are counted.
        edge_types : sequence of EdgeType
            Whose edges are numbered, over all blocks: ``edge_rows``, and ``edge_places`` of each block.
        """
        graph = topology.topology
        placed = place_seeds(session, graph, seeds, key)
        given = {ntype: placed.nodes[ntype] for ntype in graph.node_types if ntype in placed.nodes}
        given = {ntype: ids for ntype, ids in given.items() if len(ids)}
        counts = Counts(session, [len(ids) for ids in given.values()])
        numbers = {ntype: NodeNumbers(session, counts, graph.num_nodes[ntype]) for ntype in graph.node_types}
        most = self._most_nodes(graph, {ntype: len(ids) for ntype, ids in given.items()}, uncounted_edges)
        bad: dict[str, Count] = {}
        seed_rows = {ntype: session.empty(0, np.int64) for ntype in numbers}
        for (ntype, ids), count in zip(given.items(), counts.given, strict=True):
            bad[ntype] = counts.new(1)
            numbers[ntype].reserve(most[ntype])
            seed_rows[ntype] = numbers[ntype].add(ids, count, bad[ntype].flag)
        hops = {
            etype: Hop(session, topology, etype, counts, placed.excluded.get(etype), uncounted_edges)
            for etype in topology.relations
        }
        walk = Walk(session, graph, hops, numbers, key, topology.origins, counts)
        num_seeds = walk.sizes()
        layers = self._layers(walk)
        numbered = {etype: _number_edges(walk, layers, etype) for etype in edge_types}
        counts.read(counts.new(0))  # the wait: everything above is queued, and all numbers are known after it
        for ntype, flag in bad.items():
            if counts.read(flag):
                raise ConfigError(f"seeds of {ntype} must be in [0, {graph.num_nodes[ntype]})")
        for hop in hops.values():
            hop.check()
        return self._pack(walk, num_seeds, layers, seed_rows, placed.edges, numbered)

    @abc.abstractmethod
    def _layers(self, walk: Walk) -> list[Layer]: ...

    def _most_nodes(self, graph: Topology, seeds: dict[str, int], uncounted_edges: int) -> dict[str, int]:
        """Return by type for how many nodes to take memory at once; a layer that finds more asks for more."""
        return seeds

    def _part(self, hop: Hop, edges: DeviceEdges, src: DeviceArray, weights: DeviceArray | None = None) -> Part:
        """Return edges with their sources' numbers, and their ids where those are asked for."""
        return Part(edges, src, hop.name(edges) if self.edge_ids else None, weights)

    def _pack(
        self,
        walk: Walk,
        num_seeds: dict[str, Count],
        layers: list[Layer],
        seed_rows: dict[str, DeviceArray],
        edges: EdgeSeeds | None,
        numbered: Mapping[EdgeType, _NumberedEdges],
    ) -> DeviceSample:
        """Copy what was sampled, now that its sizes are known, to one piece of memory that is as large."""
        packing, read = Packing(walk.session), walk.counts.read
        for ntype, numbering in walk.numbers.items():
            packing.add(("nodes", ntype), numbering.nodes, read(numbering.count))
            packing.add(("rows", ntype), seed_rows[ntype], len(seed_rows[ntype]))
        for number, layer in enumerate(layers):
            for etype, part in layer.parts.items():
                count = read(part.edges.count)
                packing.add((number, etype, "begins"), part.edges.begins, read(part.edges.num_dst) + 1)
                packing.add((number, etype, "src"), part.src, count)
                if part.ids is not None:
                    packing.add((number, etype, "ids"), part.ids, count)
                if part.weights is not None:
                    packing.add((number, etype, "weights"), part.weights, count)
        for etype, found in numbered.items():
            packing.add(("edge rows", etype), found.numbers.nodes, read(found.numbers.count))
            for number, (layer, places) in enumerate(zip(layers, found.places, strict=True)):
                packing.add((number, etype, "places"), places, read(layer.parts[etype].edges.count))
        packed = packing.copy()
        pieces = packed.pieces

        def piece(number: int, layer: Layer, name: str) -> dict[EdgeType, DeviceArray]:
            return {etype: pieces[number, etype, name] for etype in layer.parts if (number, etype, name) in pieces}

        rows = {ntype: pieces["rows", ntype] for ntype in walk.numbers}
        return DeviceSample(
            {ntype: pieces["nodes", ntype][: read(count)] for ntype, count in num_seeds.items()},
            {ntype: pieces["nodes", ntype] for ntype in walk.numbers},
            [
                DeviceBlock(
                    {ntype: read(count) for ntype, count in layer.num_src.items()},
                    {ntype: read(count) for ntype, count in layer.num_dst.items()},
                    piece(number, layer, "begins"),
                    piece(number, layer, "src"),
                    piece(number, layer, "ids") if self.edge_ids else None,
                    piece(number, layer, "weights") or None,
                )
                for number, layer in enumerate(layers)
            ],
            rows,
            packed,
            None if edges is None else pair_rows(walk.session, walk.graph, edges, rows),
            {etype: pieces["edge rows", etype] for etype in numbered},
            {etype: [pieces[number, etype, "places"] for number in range(len(layers))] for etype in numbered},
        )


@dataclass(frozen=True)
class _NumberedEdges:
    """The distinct edges of one type, and for every block where its edges are among them."""

    numbers: NodeNumbers
    places: list[DeviceArray]


def _number_edges(walk: Walk, layers: list[Layer], etype: EdgeType) -> _NumberedEdges:
    numbers, places = NodeNumbers(walk.session, walk.counts), []
    for layer in layers:
        part = layer.parts[etype]
        if part.ids is None:
            raise ConfigError("features of edges need a sampler that returns edge ids (got one with edge_ids=False)")
        places.append(numbers.add(part.ids, part.edges.count))
    return _NumberedEdges(numbers, places)


def as_numpy(session: Session, sample: DeviceSample) -> dict[str, Any]:
    """Copy a sample to the host, as nested dicts of NumPy arrays in the order of a CPU sample. Waits."""

    def host(arrays: Mapping[Any, DeviceArray]) -> dict[Any, npt.NDArray[Any]]:
        return {name: session.download(array) for name, array in arrays.items()}

    return {
        "seeds": host(sample.seeds),
        "input_nodes": host(sample.input_nodes),
        "seed_rows": host(sample.seed_rows),
        "edges": None if sample.edges is None else host(vars(sample.edges)),
        "blocks": [
            {
                "num_src": block.num_src,
                "num_dst": block.num_dst,
                "indptr": host(block.indptr),
                "src": host(block.src),
                "edge_ids": None if block.edge_ids is None else host(block.edge_ids),
                "weights": None if block.weights is None else host(block.weights),
            }
            for block in sample.blocks
        ],
    }
