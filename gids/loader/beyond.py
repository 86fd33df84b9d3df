"""A loader that reads packed epochs and, where it was asked to, samples and reads online after the last of them."""

from __future__ import annotations

import os

from gids.dataset import Dataset
from gids.dataset.packed import Packed
from gids.loader.epochs import B, EpochLoader
from gids.loader.packed import PackedFeed, open_packed_options, stored_epoch
from gids.runtime.options import RuntimeOptions
from gids.runtime.runtime import Runtime


class PackedFirst(EpochLoader[B]):
    """A door whose batches may be packed; without packed epochs it is an :class:`EpochLoader` like any other.

    It sets :attr:`packed`, and :attr:`_chosen` to the options that the user chose: with packed epochs, :attr:`options` say
    how the budget serves them best.
    """

    dataset: Dataset
    packed: Packed | None
    _chosen: RuntimeOptions

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next ``iter()``; ends one that runs.

        Parameters
        ----------
        epoch : int
            Its number, from 0; one that was not packed is refused unless the loader goes on online.
        """
        if self.packed is not None:
            stored_epoch(self.packed, epoch)
        super().set_epoch(epoch)

    @property
    def _stored_epoch(self) -> int | None:
        """The packed epoch that serves as the present one; None: it is sampled."""
        return None if self.packed is None else self.packed.stored_epoch(self._epoch)

    def _open(self) -> Runtime:
        if self.packed is not None and not self._closed:
            stored = stored_epoch(self.packed, self._epoch)
            runtime = self._runtime
            is_ours = runtime is not None and runtime.pid == os.getpid()
            if runtime is not None and is_ours and isinstance(runtime.feed, PackedFeed) != (stored is not None):
                runtime.close()
                self._runtime = None
            if self._runtime is None:
                self.options = (
                    self._chosen if stored is None else open_packed_options(self.packed, self._chosen, self.dataset)
                )
        return super()._open()
