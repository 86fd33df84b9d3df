"""What moves bytes between ranks: one collective, ``all_to_all_single``, in a process group of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from gids.errors import ConfigError, PeerError


class Wire(Protocol):
    """Moves pieces of tensors between ranks. Every rank calls :meth:`swap` as often as the others, in the same order."""

    @property
    def rank(self) -> int:
        """Ours."""

    @property
    def world_size(self) -> int:
        """Ranks."""

    def swap(self, send: Tensor, sent: Sequence[int], taken: Sequence[int]) -> Tensor:
        """Send ``sent[p]`` elements of a vector to each rank ``p``, in order; return the ``taken[p]`` that each sent us.

        Raises whatever the transport raises where a rank is gone or does not answer in time.
        """

    def abort(self) -> None:
        """Let a call that is under way fail, where the transport can."""


class TorchWire:
    """A process group of ``torch.distributed`` for one exchange, so that its messages do not meet those of training.

    Made by all ranks at the same place of their programs. It is of gloo, whose tensors are in host memory, where rows
    are on their way from and to the drives.

    Parameters
    ----------
    timeout_s : float
        A collective that takes longer fails.
    """

    def __init__(self, timeout_s: float):
        if not (dist.is_available() and dist.is_initialized()):
            raise ConfigError(
                "shards needs torch.distributed.init_process_group before the loader is made (it was not called); "
                "torchrun starts the ranks"
            )
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        with self._meeting():
            if dist.get_backend() == dist.Backend.GLOO:
                dist.barrier()  # a rank that comes late is waited for as long as training waits, not only timeout_s
            self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    @contextlib.contextmanager
    def _meeting(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise PeerError(
                f"rank {self.rank} of {self.world_size}: a rank is gone, or has not made its loader in time ({error})"
            ) from error

    def gather(self, facts: Any) -> list[Any]:
        """Return what every rank says; to be called before the first :meth:`swap`."""
        found: list[Any] = [None] * self.world_size
        with self._meeting():
            dist.all_gather_object(found, facts, group=self._group)
        return found

    def swap(self, send: Tensor, sent: Sequence[int], taken: Sequence[int]) -> Tensor:
        """See :class:`Wire`."""
        received = torch.empty(sum(taken), dtype=send.dtype)
        dist.all_to_all_single(received, send, list(taken), list(sent), group=self._group)
        return received

    def abort(self) -> None:
        """Ask the group to end; versions of torch whose gloo cannot be aborted end with the time-out."""
        with contextlib.suppress(RuntimeError, NotImplementedError, AttributeError):
            self._group.abort()
