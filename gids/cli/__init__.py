"""The ``gids`` command: one module per subcommand, imported only when it runs."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, ModuleType

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
    "shard": "write the part of a dataset that one node of several holds",
    "stage": "copy a dataset from object storage to a directory, or back",
    "pack": "sample epochs before training and lay their rows out as they will be read",
    "infer": "run a model over every node, exactly and within a memory budget, and write a dataset of results",
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
    try:
        with _leaving_on_interrupt():
            name, module, args = _parse(list(sys.argv[1:] if argv is None else argv))
            if module is not None:
                importlib.import_module("gids.loader")  # and torch: most of what any command imports
        return EXIT_OK if module is None else _run(name, module, args)
    except BrokenPipeError:  # whoever reads what is printed has seen enough (gids info DATASET | head -1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes nowhere
        return EXIT_OK
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # rich has met it, and makes it an exit with 1
            return EXIT_OK
        raise
    finally:
        if argv is None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command has ended; the interpreter ends in peace


def _parse(argv: list[str]) -> tuple[str, ModuleType | None, argparse.Namespace]:
    """Return the command's name, its module and its arguments; no module where everything has been said."""
    parser = argparse.ArgumentParser(prog="gids", description="Train GNNs on features larger than memory.")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    nested = tuple(argv[:2])
    if len(nested) == 2 and nested in NESTED:
        name, (command, kind) = " ".join(nested), nested
        module = importlib.import_module(f"gids.cli.{command}_{kind}")
        own = argparse.ArgumentParser(prog=f"gids {name}", description=NESTED[command, kind])
        module.configure(own)
        return name, module, own.parse_args(argv[2:])
    chosen = next((word for word in argv if not word.startswith("-")), None)
    parsers = {name: commands.add_parser(name, help=said, description=said) for name, said in COMMANDS.items()}
    if chosen in parsers:
        importlib.import_module(f"gids.cli.{chosen}").configure(parsers[chosen])
    args, unknown = parser.parse_known_args(argv)
    if unknown:  # the command's own usage has the names that are known
        parsers.get(args.command or "", parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if args.version:
        from gids import __version__

        print(__version__)
        return "", None, args
    if args.command is None:
        parser.print_help(sys.stderr)
        raise SystemExit(EXIT_USAGE)
    return args.command, importlib.import_module(f"gids.cli.{args.command}"), args


@contextlib.contextmanager
def _leaving_on_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the process at once, with one line: inside, nothing is made that would have to be undone.

    Imports are such a place, and ``KeyboardInterrupt`` is no way out of them: where C code imports, as NumPy's and
    torch's does, it becomes another error.
    """

    def leave(_signal: int, _frame: FrameType | None) -> None:
        print("gids: interrupted", file=sys.stderr, flush=True)
        os._exit(EXIT_INTERRUPTED)

    with _on_interrupt(leave):
        yield


@contextlib.contextmanager
def _noting_interrupts() -> Iterator[list[int]]:
    """Yield a list that has an entry for each Ctrl-C, which raises ``KeyboardInterrupt`` as ever.

    A command that runs has things to undo, and still imports (DGL, PyG, matplotlib, where they are first needed): what
    comes out of it then may be another error, and is of the interrupt all the same.
    """
    seen: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        signal.default_int_handler(number, frame)

    with _on_interrupt(interrupt):
        yield seen


@contextlib.contextmanager
def _on_interrupt(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle Ctrl-C by ``handler``, where it is ours to handle: on the main thread, and by nobody else's handler."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _run(name: str, module: ModuleType, args: argparse.Namespace) -> int:
    with _noting_interrupts() as interrupts:
        try:
            code = int(module.run(args) or EXIT_OK)
        except BrokenPipeError:
            raise
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        except Exception as error:
            if interrupts:
                code = EXIT_INTERRUPTED
            elif isinstance(error, (GidsError, OSError)):
                print(f"gids {name}: {error}", file=sys.stderr)
                code = EXIT_FAILED
            else:
                raise
    if interrupts or code == EXIT_INTERRUPTED:
        print(f"gids {name}: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    return code
