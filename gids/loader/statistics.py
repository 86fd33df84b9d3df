"""What a loader of any door counts: epochs, batches, seeds, waiting, and what its runtime did since the last reset."""

from __future__ import annotations

from gids.runtime.runtime import Runtime
from gids.runtime.stats import LoaderStats, stage_stats, table_stats
from gids.types import TableKey


class RuntimeStatistics:
    """Counts for ``stats()`` and ``reset_stats()``."""

    def __init__(self) -> None:
        self._since: dict[TableKey, dict[str, int]] = {}
        self._epochs = self._batches = self._seeds = self._inputs = 0
        self._stall_s = 0.0

    def epoch_begun(self) -> None:
        """Count an epoch."""
        self._epochs += 1

    def batch_taken(self, seeds: int, inputs: int, waited_s: float) -> None:
        """Count a batch that was delivered."""
        self._batches += 1
        self._seeds += seeds
        self._inputs += inputs
        self._stall_s += waited_s

    def read(self, runtime: Runtime | None, optimum: bool = False) -> LoaderStats:
        """Return what was counted."""
        if runtime is None or runtime.division is None:
            return LoaderStats(self._epochs, self._batches, self._seeds, self._stall_s, input_nodes=self._inputs)
        tables = {
            runtime.tables[key].name: table_stats(
                counts, self._since.get(key, {}), runtime.best_hit_ratio(key) if optimum else None
            )
            for key, counts in runtime.counts().items()
        }
        return LoaderStats(
            self._epochs,
            self._batches,
            self._seeds,
            self._stall_s,
            tables,
            stage_stats(runtime.channels),
            runtime.division.allotment,
            runtime.usage(),
            runtime.division.reasons,
            runtime.is_prepared,
            self._inputs,
            exchange=runtime.exchanged(),
        )

    def reset(self, runtime: Runtime | None) -> None:
        """Begin to count anew."""
        self._epochs = self._batches = self._seeds = self._inputs = 0
        self._stall_s = 0.0
        if runtime is not None:
            self._since = runtime.counts()
            runtime.forget_recorded()
