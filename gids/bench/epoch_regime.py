"""One regime of ``gids bench epoch``: peers are tuned, the best of them alternate with gids, and both are accounted for."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import gids
from gids.bench.epoch import PROCESS_BYTES, TRAINING_BYTES, Scale, Worker, readahead_kib
from gids.bench.epoch_peers import PEERS
from gids.bench.harness import Bar, Measurement, Report
from gids.bench.page_cache import forget_pages
from gids.bench.tuning import in_words, tune
from gids.report.growth import growth_allowed
from gids.sampling.topology import topology_bytes
from gids.storage.curve import save_curve
from gids.storage.probe import probe, warm
from gids.units import format_bytes, parse_bytes

#: GIDS reports an order of magnitude over mapped files (paper 004, section 4.5), for batches that share many rows.
MAPPED_FLOOR = 25.0
#: Whatever else a careful person would use on this machine, under this limit, must not be faster.
PEER_FLOOR = 1.0
#: Where batches share little, the device's reads per second are the limit: they must be used.
READS_FLOOR = 0.9
#: Reading must hide behind training, or training behind reading, but for a tenth and some noise.
OVERLAP_CEILING = 1.15
#: What the report names as close: cells under this ratio.
CLOSE = 1.5
#: Kinds of peers that alternate with gids, the fastest while they were tuned; the others stand with that figure.
FINALISTS = 2
#: A peer that takes longer for one measurement is not tuned further.
PATIENCE_S = 120.0
#: Batches of each peer that are compared with the file; of ours it is every one of a round.
VERIFIED_PEER_BATCHES = 4
#: Of the limit, at most, page cache and the kernel's part included. At the limit the kernel takes pages back, and kills where
#: it finds none: a loader that keeps to its budget never brings it that far.
CGROUP_CEILING = 0.99
OURS, MAPPED = "gids", "dgl-mmap-random"


class Regime:
    """Measures one regime and adds to a report. Names of the dense one are those of records before there were two.

    Parameters
    ----------
    name : str
        ``"dense"`` or ``"sparse"``.
    scale : Scale
        Its size.
    data : Path
        Its dataset.
    args : Namespace
        The command line.
    report : Report
        What is added to.
    """

    def __init__(self, name: str, scale: Scale, data: Path, args: argparse.Namespace, report: Report):
        self.name, self.scale, self.data, self.args, self.report = name, scale, data, args, report
        self.prefix = "" if name == "dense" else f"{name}: "
        self.stack = ExitStack()
        self.limit = parse_bytes(scale.limit)
        self.rounds, self.batches = args.rounds or scale.rounds, args.batches or scale.batches
        self.dataset = gids.open(data)
        self.table = self.dataset.feature_table()
        chosen = dict(pair.split("=", 1) for pair in args.option)
        self.common: dict[str, Any] = {
            "data": str(data),
            "fanouts": [10, 10],
            "batch_size": scale.batch_size,
            "torch_threads": 1,
            "hidden": scale.hidden,
            "options": scale.options | {name: int(text) if text.isdigit() else text for name, text in chosen.items()},
        }

    def __enter__(self) -> Regime:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stack.close()

    def measure(self) -> None:
        """Run every round, and add rates, bars and details."""
        settings = self.common | {
            **{name: getattr(self.scale, name) for name in ("nodes", "degree", "dim", "lead_s", "least_s")},
            "batches": self.batches,
            "trained_batches": self.scale.trained_batches,
            "limit_bytes": None if self.args.no_limit else self.limit,
            "rounds": self.rounds,
        }
        self.report.settings[self.name] = settings
        self._prepare()
        tuned, left_out = self._tune()
        kinds = sorted(tuned, key=lambda kind: -tuned[kind]["rate"])[:FINALISTS]
        ours, mapped = self._start(OURS, "gids"), self._start(MAPPED, "dgl", advice="random")
        peers = [self._start(kind, kind, setting=tuned[kind]["setting"]) for kind in kinds]
        workers = {OURS: ours, MAPPED: mapped} | dict(zip(kinds, peers, strict=True))
        verified = {}
        for name, worker in workers.items():
            count = self.batches if name == OURS else min(self.batches, VERIFIED_PEER_BATCHES)
            verified[name] = worker.ask("verify", 0, count)["verified_batches"]
            self._forget()
        answers: dict[str, list[dict[str, Any]]] = {name: [] for name in workers}
        for number in range(self.rounds):
            for name in workers if number % 2 == 0 else reversed(workers):
                answers[name].append(self._round(workers[name], number, self.batches if name == OURS else 1))
        for worker in workers.values():
            worker.close()
        names = {OURS: self.prefix + OURS, MAPPED: self.prefix + MAPPED}
        names |= {kind: f"{self.prefix}{kind}, {in_words(PEERS[kind][1], tuned[kind]['setting'])}" for kind in kinds}
        rates = {
            name: Measurement(names[name], "rows", tuple(a["rows"] / a["seconds"] for a in found))
            for name, found in answers.items()
        }
        self.report.measurements += rates.values()
        self._judge(rates, answers[OURS])
        extra = {
            "peers": {
                kind: {
                    "setting": found["setting"],
                    "in_words": in_words(PEERS[kind][1], found["setting"]),
                    "rate_by_setting": found["rate_by_setting"],
                    "alternated": kind in kinds,  # with gids; the others stand with what they did while tuned
                }
                for kind, found in tuned.items()
            },
            "left_out": left_out,
            "times_peer": self._cells(rates[OURS].median, rates, tuned),
            "verified_batches": verified,
            "peak_rss": {
                name: format_bytes(max(a["peak_rss_bytes"] for a in found)) for name, found in answers.items()
            },
            **self._accounts(answers[OURS]),
        }
        if not self.args.quick or self.name == "dense":
            extra |= self._plain()
        if self.scale.trained_batches:
            extra |= self._overlap()
        close = [peer for peer, times in extra["times_peer"].items() if times < CLOSE]
        self.report.extra[self.name] = extra | {"under_1.5": close}

    def _prepare(self) -> None:
        """Warm what nobody should warm alone, and probe, as ``gids probe`` would, but for this run alone."""
        if not self.args.quick:  # the host of a virtual disk keeps what was read lately
            warm(self.table.stripes[0].path, self.table.total_bytes, seconds=30.0)
        self._forget()
        self.curve = probe(self.data, seconds=1.0 if self.args.quick else 4.0, scratch_bytes=32 << 20)
        self.cache_home = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="gids-curve-")))
        save_curve(self.data, self.curve, self.cache_home / "gids" / "curves")

    def _forget(self) -> None:
        for stripe in self.table.stripes:
            forget_pages(stripe.path)

    def _start(self, name: str, contender: str, *, advice: str = "", beside: int = 0, setting: int = 0) -> Worker:
        plain = f"{self.name}-{name}-{setting}".replace(" ", "-").replace("'", "")
        spec = self.common | {
            "name": plain,
            "contender": contender,
            "advice": advice,
            "setting": setting,
            "budget": self.limit - PROCESS_BYTES - beside,
        }
        worker = Worker(spec, None if self.args.no_limit else self.limit, cache_home=self.cache_home)
        self.stack.callback(worker.close)
        return worker

    def _round(self, worker: Worker, number: int, batches: int, **more: Any) -> dict[str, Any]:
        """Measure one turn; what it leaves in the page cache would serve the next contender beyond its limit."""
        answer = worker.ask("round", number, batches, lead_s=self.scale.lead_s, least_s=self.scale.least_s, **more)
        self._forget()
        return answer

    def _tune(self) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Try every kind of peer with its settings, once each; return the best of each kind, and what could not run."""
        kinds = {kind: (unit, settings) for kind, (_, unit, settings) in PEERS.items()}
        too_large = {}
        half = self.table.num_rows * self.table.dim * 2 + topology_bytes(self.dataset) + PROCESS_BYTES
        if half > self.limit:
            del kinds["float16 in memory"]
            too_large["float16 in memory"] = f"needs {format_bytes(half)} of {format_bytes(self.limit)}"

        def rate_of(kind: str, setting: int) -> float:
            worker = self._start(kind, kind, setting=setting)
            try:
                answer = self._round(worker, 0, 1, within_s=PATIENCE_S)
                return float(answer["rows"] / answer["seconds"])
            finally:
                worker.kill()
                self._forget()

        tuned, left_out = tune(kinds, rate_of, every=self.scale.tuned)
        return tuned, too_large | left_out

    def _judge(self, rates: dict[str, Measurement], ours: list[dict[str, Any]]) -> None:
        """Add the bars. A quick run has batches that cost Python more than the disk: it promises memory only."""
        rate = {name: m.median for name, m in rates.items()}
        peak = max(a["peak_rss_bytes"] for a in ours)
        growth = max(a["growth_bytes"] for a in ours) / growth_allowed(self.limit - PROCESS_BYTES)
        if not self.args.quick:
            if self.name == "dense":
                self._bar("rows/s over DGL with mmap and MADV_RANDOM", rate[OURS] / rate[MAPPED], MAPPED_FLOOR)
            else:
                self._bar("reads/s over the probed limit", self._reads(ours)["reads_over_limit"], READS_FLOOR)
            best = max(value for name, value in rate.items() if name != OURS)
            self._bar("rows/s over the best peer", rate[OURS] / best, PEER_FLOOR)
        self._bar("peak resident memory / limit", peak / self.limit, 1.0, True)
        self._bar("growth of the process / (1.05 x budget + 32 MiB)", growth, 1.0, True)
        charged = [a["cgroup_peak_bytes"] for a in ours if a.get("cgroup_peak_bytes") is not None]
        if charged:
            self._bar("peak of the memory cgroup / limit", max(charged) / self.limit, CGROUP_CEILING, True)

    def _bar(self, name: str, value: float, floor: float, lower_is_better: bool = False) -> None:
        self.report.bars.append(Bar(self.prefix + name, value, floor, lower_is_better))

    def _cells(self, ours: float, rates: dict[str, Measurement], tuned: dict[str, dict[str, Any]]) -> dict[str, float]:
        """Return how many times as fast gids is, by peer: as alternated, else as tuned."""
        cells = {name: ours / m.median for name, m in rates.items() if name != OURS}
        return cells | {kind: ours / found["rate"] for kind, found in tuned.items() if kind not in cells}

    def _reads(self, ours: list[dict[str, Any]]) -> dict[str, float]:
        """Return what was read, over what was needed and over what the device can do; medians over rounds."""
        tables = [a["table"] for a in ours]
        pairs = list(zip(ours, tables, strict=True))
        median = statistics.median
        needed = self.table.row_bytes
        return {
            "rows_per_read": median(t["disk"] / max(t["reads"], 1) for t in tables),
            "reads_over_limit": median(t["reads"] / a["seconds"] / self.curve.peak_iops for a, t in pairs),
            "bandwidth_over_limit": median(t["bytes_read"] / a["seconds"] / self.curve.bandwidth for a, t in pairs),
            "bytes_read_over_needed": median(t["bytes_read"] / max(t["disk"] * needed, 1) for t in tables),
            "served_without_disk": median(1 - t["disk"] / max(t["requests"], 1) for t in tables),
        }

    def _accounts(self, ours: list[dict[str, Any]]) -> dict[str, Any]:
        rows = statistics.median(a["rows"] / a["batches"] for a in ours)
        return {
            "rows_in_a_batch": rows,
            "density": rows / self.table.num_rows,
            **self._reads(ours),
            "probed_bandwidth": self.curve.bandwidth,
            "probed_iops": self.curve.peak_iops,
            "probed_merge_gap_bytes": self.curve.merge_gap_bytes,
            "cgroup_peak_bytes": ours[-1].get("cgroup_peak_bytes"),
            "memory": ours[-1]["memory"],
            "growth_bytes": [a["growth_bytes"] for a in ours],
            "chosen": ours[-1]["reasons"],
            "tables": [a["table"] for a in ours],
        }

    def _plain(self) -> dict[str, Any]:
        """Measure the map without advice, once, as the papers have it: its readahead decides."""
        worker = self._start("dgl-mmap-plain", "dgl", advice="normal")
        plain = worker.ask("round", 0, 1, self.scale.plain_rows)
        worker.close()
        self._forget()
        return {"plain_rows_per_s": plain["rows"] / plain["seconds"], "readahead_kib": readahead_kib(self.data)}

    def _overlap(self) -> dict[str, Any]:
        """Measure data alone, compute alone, and both."""
        worker = self._start("gids-training", "gids", beside=0 if self.args.quick else TRAINING_BYTES)
        found = [worker.ask("overlap", number, self.scale.trained_batches) for number in range(self.rounds)]
        worker.close()
        data_s, compute_s, both_s = (
            statistics.median(one[name] for one in found) for name in ("data_s", "compute_s", "both_s")
        )
        if not self.args.quick:
            self._bar("epoch / max(data only, compute only)", both_s / max(data_s, compute_s), OVERLAP_CEILING, True)
        return {"overlap": [{name: one[name] for name in ("data_s", "compute_s", "both_s")} for one in found]}
