"""gids.Shards: what a user says about tables that are split over nodes."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from torch.utils.data import get_worker_info

from gids.cluster.exchange import Exchange
from gids.cluster.homes import Homes
from gids.cluster.wire import TorchWire
from gids.errors import ConfigError
from gids.storage import StorageOptions
from gids.table import RowTable
from gids.units import parse_bytes

#: Who says which node a process is on, in the order in which they are asked: torchrun, Slurm.
NODE_VARIABLES = ("GROUP_RANK", "SLURM_NODEID")


@dataclass(frozen=True)
class Shards:
    """Feature tables split by ranges of rows over the nodes of a job; rows travel by ``torch.distributed``.

    Node ``k`` of ``N`` reads rows ``[n * k // N, n * (k + 1) // N)`` of a table of ``n`` rows from its own drives, for
    itself and for the others. Everything else stays as it is: batches are the same to the bit, caches and host buffers
    hold rows of any node. All ranks make their loaders at the same place of their programs, after
    ``init_process_group``, and close them at the same place.

    Parameters
    ----------
    node : int, optional
        Which node this process is on; by default what torchrun (``GROUP_RANK``) or Slurm (``SLURM_NODEID``) says.
    timeout_s : float
        A rank that does not answer for so long is taken for dead: every iteration of the others then ends with
        :class:`gids.PeerError`.
    memory : int or str
        Memory for rows on their way between nodes, within the loader's budget.

    Examples
    --------
    >>> torch.distributed.init_process_group()
    >>> loader = gids.Loader("my-graph", "train", fanouts=[10, 10], shards=gids.Shards())
    """

    node: int | None = None
    timeout_s: float = 60.0
    memory: int | str = "64MiB"

    def __post_init__(self) -> None:
        if self.node is not None and self.node < 0:
            raise ConfigError(f"node must not be negative (got {self.node})")
        if not self.timeout_s > 0:
            raise ConfigError(f"timeout_s must be positive (got {self.timeout_s})")
        if self.memory_bytes < 1 << 20:
            raise ConfigError(f"memory of shards must be at least 1 MiB (got {self.memory!r})")

    @property
    def memory_bytes(self) -> int:
        """Memory for rows on their way between nodes."""
        return parse_bytes(self.memory, "memory of shards")

    def _node(self) -> int:
        if self.node is not None:
            return self.node
        for name in NODE_VARIABLES:
            value = os.environ.get(name)
            if value is not None and value.isdigit():
                return int(value)
        raise ConfigError(f"node of shards must be given where none of {', '.join(NODE_VARIABLES)} is set (got None)")

    def open(self, tables: Sequence[RowTable], reading: StorageOptions) -> Exchange | None:
        """Meet the other ranks; None where all of them are on one node, whose drives have everything.

        Parameters
        ----------
        tables : sequence of RowTable
            Everything that batches may ask for; the same on all ranks.
        reading : StorageOptions
            How to read what others ask for.
        """
        if get_worker_info() is not None:
            raise ConfigError("shards must be used in the process that trains (got a worker of a DataLoader)")
        node = self._node()
        wire = TorchWire(self.timeout_s)
        described = [(table.name, table.dtype, table.dim, table.num_rows) for table in tables]
        said = wire.gather((node, described, socket.gethostname()))
        for rank, (_, theirs, host) in enumerate(said):
            if theirs != described:
                raise ConfigError(f"tables of all ranks must be {described} (got {theirs} from rank {rank} on {host})")
        homes = Homes([node for node, _, _ in said], wire.rank)
        if homes.num_nodes == 1:
            return None  # a part of a table is then refused by its reader
        for table in tables:
            wanted = homes.held(table.num_rows)
            if table.held is not None and len(wanted):
                try:
                    table.check_held(wanted[0], wanted[-1])
                except ConfigError as error:
                    raise ConfigError(
                        f"node {homes.node} of {homes.num_nodes} must be given its own part: {error}"
                    ) from None
        names = [f"rank {rank} on {host} (node {node})" for rank, (node, _, host) in enumerate(said)]
        return Exchange(wire, homes, tables, reading, self.memory_bytes, self.timeout_s, names)
