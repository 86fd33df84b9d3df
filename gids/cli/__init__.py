"""The ``gids`` command: one module per subcommand, imported only when it runs."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

from gids.errors import GidsError

#: Subcommand -> one line for ``gids --help``. Module ``gids.cli.<name>`` has ``configure(parser)`` and ``run(args)``.
COMMANDS: dict[str, str] = {
    "demo": "train from disk within a memory budget and compare with training from memory",
    "budget": "divide a memory budget by a short profile, and say why",
    "bench": "measure, and say which promises hold",
    "report": "make one self-contained HTML page of a run",
    "convert": "make a dataset from a graph in another layout (OGB, IGB, DGL, PyG, numpy, ...); convert kg: of triples",
    "generate": "make a synthetic dataset: planted communities or R-MAT; generate kg: triples",
    "partition": "divide the nodes of a dataset into parts with few edges between them",
    "reorder": "relabel the nodes of a dataset, so that rows that are asked for together are neighbours on disk",
    "slice": "slice the subgraphs of a knowledge graph's queries before training, and say how well it went",
    "pack": "sample epochs before training and lay their rows out as they will be read",
    "info": "show what a dataset holds, or packed epochs",
    "probe": "measure a device: latency, IOPS and bandwidth",
    "doctor": "show what this machine can do, and the one step that changes each no",
    "selftest": "check a GPU: every kernel, the storage engines and a training against the CPU",
    "status": "write the table of what of the CUDA backend was proven, and how",
    "verify": "check every row of a dataset against its checksums",
    "nvme": "datasets on raw NVMe drives that gids reads from userspace",
}

#: Subcommands of a subcommand, where it is used as ``gids <command> <name> ...``: module ``gids.cli.<command>_<name>``.
NESTED: dict[tuple[str, str], str] = {
    ("convert", "kg"): "make a dataset from a knowledge graph in another layout (TSV, N-Triples, OGB, WordNet)",
    ("generate", "kg"): "make a synthetic knowledge graph with skewed degrees and relations",
}

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``gids`` with ``argv`` (default: the process's arguments) and return the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="gids", description="Train GNNs on features larger than memory.")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    nested = tuple(argv[:2])
    if len(nested) == 2 and nested in NESTED:
        return _run_nested(nested[0], nested[1], argv[2:])
    chosen = next((word for word in argv if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        if name == chosen:
            importlib.import_module(f"gids.cli.{name}").configure(command)
    args = parser.parse_args(argv)
    if args.version:
        from gids import __version__

        print(__version__)
        return EXIT_OK
    if args.command is None:
        parser.print_help()
        return EXIT_USAGE
    return _run(args.command, importlib.import_module(f"gids.cli.{args.command}"), args)


def _run_nested(command: str, name: str, argv: Sequence[str]) -> int:
    module = importlib.import_module(f"gids.cli.{command}_{name}")
    parser = argparse.ArgumentParser(prog=f"gids {command} {name}", description=NESTED[command, name])
    module.configure(parser)
    return _run(f"{command} {name}", module, parser.parse_args(argv))


def _run(name: str, module: ModuleType, args: argparse.Namespace) -> int:
    try:
        return int(module.run(args) or EXIT_OK)
    except (GidsError, OSError) as error:
        print(f"gids {name}: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print(f"gids {name}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
