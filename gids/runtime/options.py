"""What a user may choose, in a few groups that all doors share; None always means: you choose."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gids.budget.parts import Request
from gids.errors import ConfigError
from gids.runtime.ranking import check_host_rank
from gids.sampling.order import Uneven
from gids.storage import StorageOptions
from gids.tiers import Policy, parse_policy
from gids.units import parse_bytes

if TYPE_CHECKING:
    from gids.partition import Partition
    from gids.runtime.peers import Sharding

TOPOLOGIES = ("memory", "disk", None)


@dataclass(frozen=True, kw_only=True)
class MemoryOptions:
    """How the budget is used; everything that is left out is chosen by a short profile, and ``stats()`` tells.

    Attributes
    ----------
    cache, host_buffer, groups : int, str or None
        Memory for the cache, for the constant host buffer, and for rows being read, e.g. ``"512MiB"``.
    staging : int, str or None
        Memory that the drives write to.
    policy : str or Policy
        Which rows stay in the cache, see :mod:`gids.tiers`.
    popularity : bool or None
        With policy ``window``: whether rows that the window does not need stay by ``host_rank`` instead of by their uses
        while they were cached. Takes one byte for every row of the table, out of the cache's memory; by default where
        that is at most 1/16 of it (and ``host_rank`` is not chance).
    host_rank : {"visits", "pagerank", "degree", "counted", "random"}, .npy file, array or Tensor, mapping, or None
        Which rows the host buffer holds: by the visits that neighbour sampling with these fan-outs is expected to make
        (the default; needs fan-outs), by weighted reverse PageRank from the seeds (the default without), by degree, by the
        accesses of an epoch that is sampled for the purpose, by chance, or by scores of your own, one per node (by node
        type on a heterograph; not negative, nodes of score 0 stay out). Loaders of this machine that hold the same
        rows, in whatever process, share one copy.
    topology : {"memory", "disk", None}
        Where neighbour lists are. ``"disk"`` keeps only offsets and the hottest lists in memory; same batches. None takes
        memory where the graph fits into half of the budget (or into ``topology_budget``), else the disk.
    topology_budget : int, str or None
        Memory that a graph on disk may add to the process, within the budget: offsets, lists, a cache for them, what is
        being read; 0 stands for the least. By default as much as saves more disk time than features would with it.
    device_budget : int, str or None
        With ``device="cuda"``: device memory for everything the loader holds; by default 80 % of what is free, or 60 %
        where torch has not allocated anything on the device, as the model is still to come.
    history : HistoryOptions or None
        Use embeddings of the last batches, kept within the budget, instead of computing them again: fewer rows,
        approximate. Needs neighbour sampling from node seeds; the model calls ``loader.history.exchange(h, batch)``
        before its last layer.
    """

    cache: int | str | None = None
    host_buffer: int | str | None = None
    groups: int | str | None = None
    staging: int | str | None = None
    policy: str | Policy = "window"
    popularity: bool | None = None
    host_rank: Any = None
    topology: str | None = "memory"
    topology_budget: int | str | None = None
    device_budget: int | str | None = None
    history: HistoryOptions | None = None

    def __post_init__(self) -> None:
        for name in ("cache", "host_buffer", "groups", "staging", "topology_budget", "device_budget"):
            optional_bytes(getattr(self, name), name)
        parse_policy(self.policy)
        check_host_rank(self.host_rank)
        if self.topology not in TOPOLOGIES:
            raise ConfigError(f"topology must be one of {', '.join(map(repr, TOPOLOGIES))} (got {self.topology!r})")


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """How far ahead of training a loader works.

    Attributes
    ----------
    window : int or None
        Batches that are sampled ahead of the group being planned, so that the cache knows what is coming; by default
        chosen by the profile.
    sweep_batches : int or None
        Most batches that share each read; by default the profile chooses, up to 32.
    groups_in_flight : int
        Groups that are read to their end, or about to be, and wait to be gathered.
    prefetch : int
        Batches that are finished, or being made, while the training loop works on another.
    in_order : bool
        If False, batches come as they are ready; every batch is the same either way.
    sample_workers : int or None
        Sampling threads: batches that are sampled at once, which share what they read of a graph on disk. By default one,
        and for a graph on disk, where most of them wait, four if the budget allows it.
    threads : int or None
        Threads that share the work of sampling, planning and copying; by default as many as there are cores.
    accesses : int or None
        Accesses to storage that a group of batches should have, so that the drives are busy; by default what their
        curve asks for (see ``gids probe``), for every drive under the stripes.
    spill_samples : bool, str or path-like
        Let sampled batches of the window, beyond the next few, wait on disk: which rows they need stays in memory, so that
        a window (with policy ``"belady"``, Ginex's superbatch) can have hundreds of batches. True: beside the dataset, or
        where temporary files go; otherwise a directory. Without ``window`` it is as long as a quarter of the budget and
        half of the free disk space hold. On the CPU only.
    """

    window: int | None = None
    sweep_batches: int | None = None
    groups_in_flight: int = 2
    prefetch: int = 2
    in_order: bool = True
    sample_workers: int | None = None
    threads: int | None = None
    accesses: int | None = None
    spill_samples: bool | str | os.PathLike[str] = False

    def __post_init__(self) -> None:
        least = {
            "window": 0,
            "sweep_batches": 1,
            "groups_in_flight": 1,
            "prefetch": 1,
            "sample_workers": 1,
            "threads": 1,
            "accesses": 1,
        }
        for name, minimum in least.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise ConfigError(f"{name} must be at least {minimum} (got {value})")


@dataclass(frozen=True)
class SpillOptions:
    """Rows of many batches are copied to disk by one pass over a table, and read in order from there.

    Worth it in sparse batches on a disk with room, where random reads are the limit; the loader compares, by what
    ``gids probe`` measured, and reads online where it does not pay (``stats().reasons`` says so).

    Attributes
    ----------
    disk : int or str
        Most space, e.g. ``"64GiB"``, over all processes of this machine.
    directory : str or path-like, optional
        Where; by default beside the dataset, or where temporary files go. The file has no name and goes with the process.
    batches : int or None
        That one pass serves, whether it pays or not; by default as many as are best, where it pays.
    most_written : int, str or None
        Bytes that may be written in all, as drives wear; then rows are read online.
    """

    disk: int | str
    directory: str | os.PathLike[str] | None = None
    _: KW_ONLY
    batches: int | None = None
    most_written: int | str | None = None

    def __post_init__(self) -> None:
        parse_bytes(self.disk, "spill")
        optional_bytes(self.most_written, "most_written")
        if self.batches is not None and self.batches < 2:
            raise ConfigError(f"batches of a spill must be at least 2 (got {self.batches})")
        if self.directory is not None and not Path(self.directory).is_dir():
            raise ConfigError(f"directory of a spill must be a directory (got {os.fspath(self.directory)})")

    @classmethod
    def of(cls, given: SpillOptions | int | str | None) -> SpillOptions | None:
        """Take a size for options."""
        return given if given is None or isinstance(given, SpillOptions) else cls(given)


@dataclass(frozen=True, kw_only=True)
class OrderOptions:
    """In which order the seeds come, which part of them is ours, and which of them meet in a batch.

    Attributes
    ----------
    shuffle : bool or None
        As in PyTorch's DataLoader; by default they are shuffled. DGL's and PyG's loaders have it as a keyword.
    seed : int or None
        With epoch and batch number the only source of randomness, of samples too; 0 by default. A keyword in PyG's
        loaders; in DGL's the sampler has it.
    drop_last : bool
        As in PyTorch's DataLoader.
    rank, world_size : int or None
        Which part of the seeds is ours; by default from ``torch.distributed`` where that is initialised.
    uneven : {"pad", "join"}
        What happens where the seeds cannot be shared out evenly, see :class:`gids.sampling.SeedOrder`.
    parts : str, int, Partition or None
        A partition of the dataset (``gids partition``), by name or as an object: seeds of a part then follow each other,
        parts in an order that changes with every epoch. Batches share more neighbours, so fewer rows are read; they are
        exact, and less random than those of a plain shuffle (the default). Of seed edges, the parts of their sources.
    parts_per_group : int
        Parts whose seeds are mixed: the more, the more random, and the fewer rows are saved.
    """

    shuffle: bool | None = None
    seed: int | None = None
    drop_last: bool = False
    rank: int | None = None
    world_size: int | None = None
    uneven: Uneven = "pad"
    parts: Partition | str | int | None = None
    parts_per_group: int = 1

    def __post_init__(self) -> None:
        if self.parts_per_group < 1:
            raise ConfigError(f"parts_per_group must be at least 1 (got {self.parts_per_group})")
        if self.parts is None and self.parts_per_group != 1:
            raise ConfigError(f"parts_per_group must not be given without parts (got {self.parts_per_group})")
        if (self.rank is None) != (self.world_size is None):
            raise ConfigError(f"rank and world_size must be given together (got {self.rank} and {self.world_size})")
        if self.seed is not None:
            check_seed(self.seed)

    def check_keywords(self) -> None:
        """Refuse what a loader has keywords for."""
        if self.shuffle is not None or self.seed is not None:
            raise ConfigError(
                "shuffle and seed must be given to this loader, not in order "
                f"(got order with shuffle={self.shuffle}, seed={self.seed})"
            )

    def resolved(self) -> tuple[int, int]:
        """Return rank and world size, from ``torch.distributed`` where they were not given."""
        if self.rank is not None and self.world_size is not None:
            return self.rank, self.world_size
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        return 0, 1


@dataclass(frozen=True, kw_only=True)
class HistoryOptions:
    """Historical embeddings: approximate, and so only on request.

    A node whose last-layer input was computed at most ``max_age`` batches ago is not expanded: its subtree is neither
    sampled nor read, and the model takes the stored embedding, without gradient, from ``loader.history``.

    Attributes
    ----------
    dim : int
        Width of the last layer's input.
    max_age : int
        Batches after which an embedding is too old; 0 expands everything.
    nodes : float, array, Tensor, mapping of str to those, or None
        Whose embeddings are stored: a share of all nodes, the ones that sampling is expected to need most; or their ids.
        None takes as many as save more disk time per byte than cached rows would, by a profile of some batches.
    dtype : torch.dtype
        What is stored.
    reason : str
        Why these nodes, for ``stats()``.
    """

    dim: int
    max_age: int = 8
    nodes: Any = 0.2
    dtype: torch.dtype = torch.float32
    reason: str = "nodes as asked for"

    def __post_init__(self) -> None:
        if self.dim < 1:
            raise ConfigError(f"dim must be at least 1 (got {self.dim})")
        if self.max_age < 0:
            raise ConfigError(f"max_age must not be negative (got {self.max_age})")
        if isinstance(self.nodes, str):
            raise ConfigError(f"nodes must be a share, None, or ids (got {self.nodes!r})")
        if isinstance(self.nodes, float | int) and not 0 <= self.nodes <= 1:
            raise ConfigError(f"nodes must be a share in [0, 1], or ids (got {self.nodes})")

    def __str__(self) -> str:
        return f"historical embeddings, at most {self.max_age} batches old"


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What a delivered batch is.

    Attributes
    ----------
    labels : bool
        Whether batches carry the labels of their seeds.
    dtype : torch.dtype or None
        Floating point type of the rows in a batch; by default the table's.
    pin_memory : bool
        Deliver through page-locked memory.
    progress : bool
        Show a progress bar.
    record : bool
        Remember which rows were asked for, so that ``stats(optimum=True)`` can tell the best possible hit ratio. Takes
        memory.
    transform : callable or None
        Called with every batch before it is handed over, on the thread that iterates; changes it in place, or returns
        another. With ``device="cuda"`` torch's current stream, and CuPy's where CuPy is loaded, is the one that the
        batch is in order with, so that a kernel of CuPy, Numba or your own sees the rows and training sees its result;
        ``batch.x`` and the other tensors have ``__cuda_array_interface__`` and ``__dlpack__``, nothing is copied.
        Examples: ``docs/examples/transform_cupy.py``, ``transform_raw_kernel.py``, ``transform_numba.py``.
    """

    labels: bool = True
    dtype: torch.dtype | None = None
    pin_memory: bool = False
    progress: bool = False
    record: bool = False
    transform: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if self.transform is not None and not callable(self.transform):
            raise ConfigError(f"transform must be callable (got {type(self.transform).__name__})")


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions:
    """Everything that the runtime needs to know, whichever door it came through."""

    budget: int | str | None = None
    memory: MemoryOptions = field(default_factory=MemoryOptions)
    pipeline: PipelineOptions = field(default_factory=PipelineOptions)
    storage: StorageOptions | str | None = None
    output: OutputOptions = field(default_factory=OutputOptions)
    device: torch.device | None = None
    seed: int = 0
    embeddings_bytes: int = 0  # of a history, within the budget
    shards: Sharding | None = None  # tables that are split over machines
    spill: SpillOptions | int | str | None = None

    def __post_init__(self) -> None:
        optional_bytes(self.budget, "budget")
        if isinstance(self.storage, str):
            object.__setattr__(self, "storage", StorageOptions(engine=self.storage))
        if self.pipeline.spill_samples and self.device is not None and self.device.type == "cuda":
            raise ConfigError("spill_samples must be False where batches are sampled on a device (got device 'cuda')")
        object.__setattr__(self, "spill", SpillOptions.of(self.spill))
        if self.spill is not None and self.device is not None and self.device.type == "cuda":
            raise ConfigError("spill must be None where rows are read for a device (got device 'cuda')")
        if self.spill is not None and self.shards is not None:
            raise ConfigError("spill must be None where tables are split over machines (got shards)")
        if self.spill is not None and self.reading.engine in ("memory", "mmap"):
            raise ConfigError(
                f"spill must be None where no rows are read from disk (got engine {self.reading.engine!r})"
            )
        if self.shards is not None and self.device is not None and self.device.type == "cuda":
            raise ConfigError(
                "shards must be None where rows are read for a device (got device 'cuda'): rows from other nodes come to "
                "host memory; take batches there, with pin_memory=True, and move them"
            )
        check_seed(self.seed)

    @property
    def reading(self) -> StorageOptions:
        """How to read, with every default filled in."""
        assert not isinstance(self.storage, str)
        return StorageOptions() if self.storage is None else self.storage

    def request(self, processes: int = 1, spill_bytes: int | None = None) -> Request:
        """Return what the user fixed. A host buffer is shared by the processes of a machine: each counts its part.

        ``spill_bytes`` is the disk space for sampled batches; None where they wait in memory.
        """
        memory, pipeline = self.memory, self.pipeline
        host = optional_bytes(memory.host_buffer, "host_buffer")
        staging = optional_bytes(memory.staging, "staging")
        if staging is None and isinstance(self.storage, StorageOptions):
            default = StorageOptions().staging_bytes
            staging = self.storage.staging_bytes if self.storage.staging_bytes != default else None
        return Request(
            cache=optional_bytes(memory.cache, "cache"),
            host_buffer=None if host is None else host // processes,
            groups=optional_bytes(memory.groups, "groups"),
            staging=staging,
            window=pipeline.window,
            sweep_batches=pipeline.sweep_batches,
            accesses=pipeline.accesses,
            spill_bytes=spill_bytes,
        )


def check_seed(seed: int) -> None:
    """Refuse what does not key samples."""
    if not 0 <= seed < 1 << 64:
        raise ConfigError(f"seed must be in [0, 2**64) (got {seed})")


def optional_bytes(value: int | str | None, name: str) -> int | None:
    """Parse a size that may be left to the loader."""
    return None if value is None else parse_bytes(value, name)
