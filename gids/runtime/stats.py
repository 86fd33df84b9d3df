"""What a loader did: rows by source, reads, stalls, memory, and how close it came to the best possible cache."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from gids.budget import Allotment
from gids.ledger import Usage
from gids.runtime.threads import Channel
from gids.tiers import Counters, HostRows, Planner
from gids.units import format_bytes


@dataclass(frozen=True)
class TableStats:
    """One table; ``requests == cache + host + disk + duplicates``.

    Attributes
    ----------
    requests, cache, host, disk, duplicates : int
        Rows asked for, and where they came from; duplicates are rows that another batch of the group read.
    reads, bytes_read : int
        I/Os and their bytes.
    bytes_delivered : int
        Bytes of the rows asked for.
    bytes_written : int
        Bytes of rows that were spilled to disk.
    optimum : float or None
        Share of the requests that a cache with perfect foresight and as much memory as cache, host buffer and groups
        together would have served without the disk. Only if the loader records (``record=True``) and when asked.
    """

    requests: int
    cache: int
    host: int
    disk: int
    duplicates: int
    reads: int
    bytes_read: int
    bytes_delivered: int
    bytes_written: int = 0
    optimum: float | None = None

    @property
    def merge_factor(self) -> float:
        """Rows per I/O."""
        return self.disk / self.reads if self.reads else 0.0

    @property
    def hit_ratio(self) -> float:
        """Share of the requests that were served without the disk: compare it with :attr:`optimum`."""
        return 1 - self.disk / self.requests if self.requests else 0.0


@dataclass(frozen=True)
class StageStats:
    """One stage of the pipeline.

    Attributes
    ----------
    items : int
        Batches or groups that it made.
    blocked_s : float
        Time it waited because its consumer was slower.
    starving_s : float
        Time its consumer waited for it.
    mean_depth : float
        Finished items that waited when one was taken.
    """

    items: int
    blocked_s: float
    starving_s: float
    mean_depth: float


@dataclass(frozen=True)
class LoaderStats:
    """Everything since the loader was made or ``reset_stats()`` was called.

    Attributes
    ----------
    epochs, batches, seeds : int
        Begun epochs; delivered batches and their seeds.
    stall_s : float
        Time that the training loop waited for batches.
    tables : dict of str to TableStats
        By name of the table.
    stages : dict of str to StageStats
        Of the epoch that runs, or ran last.
    memory : Allotment or None
        How the budget is divided; None before the first batch was sampled.
    usage : dict of str to Usage
        What every part of the budget was allotted, uses, and used at most.
    reasons : tuple of str
        Why it is divided so.
    prepared : bool
        Whether profile, ranking and host buffer are done; until then the division is a first one.
    input_nodes : int
        Nodes whose rows the batches needed, each counted once in every batch.
    approximate : tuple of str
        What makes batches other than those that exact training has; nothing unless it was asked for.
    history : dict or None
        What was exchanged with stored embeddings, where they are used.
    exchange : dict or None
        Where tables are split over nodes, since the loader was made: rows asked of other nodes and answered to them,
        bytes received and sent, rounds, and seconds spent in them.
    """

    epochs: int
    batches: int
    seeds: int
    stall_s: float
    tables: dict[str, TableStats] = field(default_factory=dict)
    stages: dict[str, StageStats] = field(default_factory=dict)
    memory: Allotment | None = None
    usage: dict[str, Usage] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    prepared: bool = False
    input_nodes: int = 0
    approximate: tuple[str, ...] = ()
    history: dict[str, Any] | None = None
    exchange: dict[str, float] | None = None

    @property
    def redundancy_ratio(self) -> float:
        """RR = Σ|input nodes of a batch| / Σ|seeds of a batch| (OUTRE): nodes read for, per node trained on; 0 before any."""
        return self.input_nodes / self.seeds if self.seeds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers, for JSON."""
        derived = {n: {"merge_factor": t.merge_factor, "hit_ratio": t.hit_ratio} for n, t in self.tables.items()}
        plain = asdict(self) | {"redundancy_ratio": self.redundancy_ratio}
        for name, values in derived.items():
            plain["tables"][name] |= values
        return plain

    @property
    def _summary(self) -> str:
        done = f"{self.batches} batches, {self.seeds} seeds, {self.input_nodes} input nodes"
        counted = f"{done} (RR {self.redundancy_ratio:.2f}), training waited {self.stall_s:.2f} s"
        if self.history is None:
            return counted
        pulled, age = self.history["pulled_share"], self.history["mean_age_batches"]
        used = f"{pulled:.1%} of the last layer's inputs taken from {age:.1f} batches ago on average"
        return f"{counted}; APPROXIMATE ({', '.join(self.approximate)}): {used}"

    def __str__(self) -> str:
        lines = [self._summary]
        for name, t in self.tables.items():
            best = "" if t.optimum is None else f" (best possible {t.optimum:.1%})"
            spilled = f", {format_bytes(t.bytes_written)} spilled" if t.bytes_written else ""
            lines.append(
                f"{name}: {t.requests:,} rows = {t.cache:,} cache + {t.host:,} host + {t.disk:,} disk + "
                f"{t.duplicates:,} shared in a group; {t.hit_ratio:.1%} without the disk{best}; "
                f"{t.reads:,} reads, {format_bytes(t.bytes_read)}, {t.merge_factor:.1f} rows a read{spilled}"
            )
        if self.exchange is not None:
            x = self.exchange
            lines.append(
                f"other nodes: {x['rows_asked']:,.0f} rows asked for, {format_bytes(int(x['bytes_received']))} received, "
                f"{x['rows_answered']:,.0f} rows answered, {format_bytes(int(x['bytes_sent']))} sent"
            )
        for name, stage in self.stages.items():
            lines.append(
                f"{name}: {stage.items} made, blocked {stage.blocked_s:.2f} s, starving its consumer "
                f"{stage.starving_s:.2f} s, {stage.mean_depth:.1f} ready on average"
            )
        return "\n".join([*lines, str(self.memory), *self.reasons] if self.memory else lines)

    def _repr_html_(self) -> str:
        heads = (
            "table",
            "rows",
            "cache",
            "host",
            "disk",
            "in group",
            "without disk",
            "best",
            "reads",
            "read",
            "rows/read",
        )
        rows = [
            (
                name,
                f"{t.requests:,}",
                f"{t.cache:,}",
                f"{t.host:,}",
                f"{t.disk:,}",
                f"{t.duplicates:,}",
                f"{t.hit_ratio:.1%}",
                "–" if t.optimum is None else f"{t.optimum:.1%}",
                f"{t.reads:,}",
                format_bytes(t.bytes_read),
                f"{t.merge_factor:.1f}",
            )
            for name, t in self.tables.items()
        ]
        stage_heads = ("stage", "made", "blocked s", "starving s", "ready")
        stages = [
            (name, str(s.items), f"{s.blocked_s:.2f}", f"{s.starving_s:.2f}", f"{s.mean_depth:.1f}")
            for name, s in self.stages.items()
        ]
        memory = f"<p>{html.escape(str(self.memory))}</p>" if self.memory else ""
        memory += "".join(f"<p>{html.escape(reason)}</p>" for reason in self.reasons)
        return f"<p>{html.escape(self._summary)}</p>{_table(heads, rows)}{_table(stage_heads, stages)}{memory}"


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{html.escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def stage_stats(channels: list[Channel[Any]]) -> dict[str, StageStats]:
    """Read what the channels of a run counted."""
    return {
        c.name: StageStats(c.taken, c.put_wait_s, c.get_wait_s, c.depth_sum / c.taken if c.taken else 0.0)
        for c in channels
    }


def table_stats(now: Mapping[str, int], since: Mapping[str, int], optimum: float | None) -> TableStats:
    """Count what happened since ``since``."""
    return TableStats(**{name: value - since.get(name, 0) for name, value in now.items()}, optimum=optimum)


def best_hit_ratio(batches: list[Tensor], capacity: int, num_rows: int, host: HostRows | None = None) -> float:
    """Return the share that Belady's policy, with bypass, serves beside a constant host buffer over a trace of batches."""
    planner = Planner(num_rows, capacity, "belady", host=host)
    total = Counters()
    for number, batch in enumerate(batches):
        total += planner.plan_group([batch], batches[number + 1 :]).counters
    return 1 - total.disk / total.requests if total.requests else 0.0
