"""A figure that is promised, beside the one that was measured: of benchmarks, and of the demo."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """One figure that is promised. ``holds`` when ``value >= floor``, or ``<=`` where lower is better.

    ``reachable`` is False where an upper bound that the run itself found, as belady's hits, shows that nothing could hold it;
    the bar is then no more than a record.
    """

    name: str
    value: float
    floor: float
    lower_is_better: bool = False
    reachable: bool = True

    @property
    def holds(self) -> bool:
        """Whether the promise is kept."""
        return self.value <= self.floor if self.lower_is_better else self.value >= self.floor
