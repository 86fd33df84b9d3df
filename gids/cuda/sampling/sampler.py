"""What the samplers of a device share: seeds in, layers from the seeds outwards, a :class:`DeviceSample` out."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gids.cuda.array import DeviceArray
from gids.cuda.sampling.hop import DeviceEdges, Hop
from gids.cuda.sampling.numbering import NodeNumbers, sizes
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
    """A sampled batch, as :class:`gids.sampling.Sample`, with arrays on the device."""

    seeds: dict[str, DeviceArray]
    input_nodes: dict[str, DeviceArray]
    blocks: list[DeviceBlock]
    seed_rows: dict[str, DeviceArray]
    edges: DeviceSeedEdges | None = None


Part = tuple[DeviceArray, DeviceArray, DeviceArray]  # indptr, src, positions or ids


@dataclass(frozen=True)
class Walk:
    """A batch that is being sampled: the nodes found so far, and how to go on from them."""

    session: Session
    graph: Topology
    hops: Mapping[EdgeType, Hop]
    numbers: dict[str, NodeNumbers]
    key: SampleKey

    def nodes(self, ntype: str, count: int | None = None) -> DeviceArray:
        """Give the first ``count`` nodes of a type (default: all that have a number)."""
        numbering = self.numbers[ntype]
        return numbering.nodes[: numbering.size if count is None else count]


class CudaSampler(abc.ABC):
    """Samples on a device what a sampler of :mod:`gids.sampling` samples on the CPU, bit for bit."""

    edge_ids: bool = False

    def sample(
        self,
        session: Session,
        topology: PinnedTopology,
        seeds: Mapping[str, DeviceArray] | EdgeSeeds,
        key: SampleKey,
    ) -> DeviceSample:
        """Sample the batch of ``seeds``. Waits for the sizes of its arrays.

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
        """
        graph = topology.topology
        placed = place_seeds(session, graph, seeds, key)
        numbers = {ntype: NodeNumbers(session) for ntype in graph.node_types}
        bad = session.empty(1, np.uint32)
        session.fill(bad, 0)
        seed_rows = {}
        for ntype, numbering in numbers.items():
            given = placed.nodes.get(ntype, session.empty(0, np.int64))
            limit = np.int64(graph.num_nodes[ntype])
            if len(given):
                session.launch("check_ids", len(given), given, np.int64(len(given)), limit, bad)
                if session.download(bad)[0]:
                    raise ConfigError(f"seeds of {ntype} must be in [0, {limit})")
            seed_rows[ntype] = numbering.add(given)
        num_seeds = sizes(numbers)
        hops = {etype: Hop(session, topology, etype, bad, placed.excluded.get(etype)) for etype in topology.relations}
        walk = Walk(session, graph, hops, numbers, key)
        blocks = self._blocks(walk)
        return DeviceSample(
            {ntype: walk.nodes(ntype, count) for ntype, count in num_seeds.items()},
            {ntype: walk.nodes(ntype) for ntype in numbers},
            blocks,
            seed_rows,
            None if placed.edges is None else pair_rows(session, graph, placed.edges, seed_rows),
        )

    @abc.abstractmethod
    def _blocks(self, walk: Walk) -> list[DeviceBlock]: ...

    def _part(self, hop: Hop, edges: DeviceEdges, src: DeviceArray) -> Part:
        """Give edges with their sources' numbers, and their ids where those are asked for."""
        return edges.begins, src, hop.name(edges.positions) if self.edge_ids else edges.positions

    def _block(
        self,
        walk: Walk,
        num_dst: dict[str, int],
        parts: dict[EdgeType, Part],
        weights: dict[EdgeType, DeviceArray] | None = None,
    ) -> DeviceBlock:
        return DeviceBlock(
            num_src=sizes(walk.numbers),
            num_dst=num_dst,
            indptr={etype: part[0] for etype, part in parts.items()},
            src={etype: part[1] for etype, part in parts.items()},
            edge_ids={etype: part[2] for etype, part in parts.items()} if self.edge_ids else None,
            weights=weights,
        )


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
