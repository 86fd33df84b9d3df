"""What of the CUDA backend was proven, and how: compiled, run lane by lane, run through the stand-in, run on hardware.

Every cell comes from evidence: the compiled kernels, what the tests launched lane by lane and as PTX, which kernels a test
fails without, and records of ``gids selftest``. Without evidence a cell says "not run".
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gids.cuda.compile import ARCHITECTURES, Cubin
from gids.errors import ConfigError

NOT_RUN = "not run"
BEGIN, END = "<!-- status:begin -->", "<!-- status:end -->"


@dataclass(frozen=True)
class Feature:
    """A row of the table: the entry points behind it, and the check of ``gids selftest`` that exercises it."""

    name: str
    kernels: tuple[str, ...]  # beginnings of names
    check: str


FEATURES = (
    Feature("random numbers (Philox)", ("random_",), "kernels: random numbers"),
    Feature("prefix sum, compaction, stable sort", ("scan_", "compact_", "radix_"), "kernels: prefix sum and sort"),
    Feature(
        "neighbour sampling over pinned topology (UVA)",
        ("count_edges", "choose_edges_", "gather_neighbors_", "hold_neighbors_"),
        "kernels: neighbour sampling",
    ),
    Feature("weighted sampling", ("count_weighted", "choose_weighted_", "choose_labor_"), "kernels: weights, LADIES, ShaDow"),
    Feature("LADIES, ShaDow", ("ladies_", "keep_pairs", "mark_items", "flag_numbered"), "kernels: weights, LADIES, ShaDow"),
    Feature(
        "edges as seeds: negatives, exclusion",
        ("draw_negatives", "pair_seeds", "exclude_edges", "take_weights"),
        "kernels: edges as seeds",
    ),
    Feature("unique and relabel", ("unique_",), "kernels: neighbour sampling"),
    Feature("window and next use", ("observe_", "map_"), "kernels: cache planning"),
    Feature(
        "cache planning: lookup, victims, slots",
        ("classify_", "collect_", "flag_new_", "place_", "count_classes", "rank_", "choose_turns", "order_", "fill_"),
        "kernels: cache planning",
    ),
    Feature("sieve policy", ("sieve_",), "kernels: cache planning"),
    Feature("gather with dtype conversion, admission", ("gather_rows_", "admit_", "resolve_", "widen_", "unpack_"), "kernels: gather and conversion"),
    Feature("reverse PageRank", ("push_ranks_", "damp_"), "kernels: reverse PageRank"),
    Feature("NVMe queue pair driven from the GPU", ("nvme_",), "kernels: NVMe queue pair"),
    Feature("storage: pinned staging and async copy", (), "storage: uring"),
    Feature("storage: gds through kvikio", (), "storage: gds"),
    Feature("storage: gds straight to cache slots", (), "storage: gds, straight to cache slots"),
    Feature("storage: nvme, kernels read the drives", (), "storage: nvme"),
    Feature("training, two epochs from disk", (), "training: two epochs"),
)  # fmt: skip


def _record(directory: Path, name: str) -> dict[str, bool | None]:
    """Results of a selftest, and of tests that need more than it has, by check; nothing if there is no record."""
    records = [json.loads(path.read_text()) for path in sorted(directory.glob(f"selftest-{name}*.json"))]
    return {result["name"]: result["passed"] for record in records for result in record["results"]}


def _lanes(directory: Path, name: str) -> set[str]:
    """Entry points that a build of the lane-by-lane tests launched, over all test workers."""
    return {kernel for path in directory.glob(f"lanes-{name}-*.json") for kernel in json.loads(path.read_text())}


def _compared(directory: Path) -> set[str]:
    """Entry points whose outputs a test compares: it fails when they do nothing (tests/kernels/left_out.py)."""
    path = directory / "compared.json"
    return set(json.loads(path.read_text())) if path.exists() else set()


def status_table(cubins: Iterable[Cubin], evidence: Path) -> str:
    """Write the table in Markdown.

    Parameters
    ----------
    cubins : iterable of Cubin
        What compiles, from :func:`gids.cuda.compile.compile_all`.
    evidence : Path
        Directory that the tests and ``gids selftest --evidence`` write to.
    """
    cubins = list(cubins)
    compiled = {cubin.arch: {entry.kernel for entry in cubin.resources} for cubin in cubins}
    plain, sanitized, ptx = (_lanes(evidence, name) for name in ("plain", "thread", "ptx"))
    compared = _compared(evidence)
    standin, hardware = _record(evidence, "standin"), _record(evidence, "hardware")
    words = {True: "passed", False: "**failed**", None: NOT_RUN}
    lines = [
        "| GPU feature | compiled (NVRTC) | run lane by lane on the CPU | NVRTC's PTX interpreted | "
        "run through the stand-in | run on hardware |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for feature in FEATURES:
        first = lanes = as_ptx = "no kernel of its own"
        if feature.kernels:
            names = {name for kernels in compiled.values() for name in kernels if name.startswith(feature.kernels)}
            archs = [arch for arch, kernels in compiled.items() if names and names <= kernels]
            noun = "kernel" if len(names) == 1 else "kernels"
            first = f"{len(names)} {noun}, {len(archs)} of {len(ARCHITECTURES)} architectures"
            equal = "equal to the CPU" if names <= compared else "run, not known to be compared"
            lanes = _lane_words(names, plain, equal + (", no race under TSan" if names <= sanitized else ""))
            as_ptx = _lane_words(names, ptx, f"{equal}, no race")  # the interpreter ends with an error at the first
        cells = (first, lanes, as_ptx, words[standin.get(feature.check)], words[hardware.get(feature.check)])
        lines.append(f"| {feature.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _lane_words(names: set[str], launched: set[str], words: str) -> str:
    if not names or not names <= launched:
        return NOT_RUN if not names & launched else f"{len(names & launched)} of {len(names)}"
    return words


def insert(text: str, table: str) -> str:
    """Put the table between its markers in a page."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ConfigError(f"the page must have the lines {BEGIN!r} and {END!r} once, in this order")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    return f"{head}{BEGIN}\n{table}\n{END}{tail}"
