"""``gids convert kg``: make a dataset from a knowledge graph in another layout."""

from __future__ import annotations

import argparse

from gids.cli.info import print_summary
from gids.convert.kg import KG_FORMATS, KgOptions, convert_kg
from gids.convert.kg.text import TextOptions
from gids.dataset.progress import progress_bars
from gids.dataset.table_writer import Progress


def add_kg_options(parser: argparse.ArgumentParser, train: float) -> None:
    """Add the options that converted and generated knowledge graphs share."""
    parser.add_argument(
        "--reverse", action="store_true", help="add the reverse of every triple, as a relation of its own"
    )
    parser.add_argument("--identity", action="store_true", help="add (e, identity, e) for every entity")
    parser.add_argument("--valid", type=float, default=0.0, help="share of triples held out as queries (default 0)")
    parser.add_argument("--test", type=float, default=0.0, help="share of triples held out as queries (default 0)")
    parser.add_argument(
        "--train", type=float, default=train, help=f"share of the graph's triples listed as queries (default {train:g})"
    )
    parser.add_argument("--seed", type=int, default=0, help="for everything drawn (default 0)")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an existing dataset when the new one is complete"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    layouts = "\n".join(f"  {name:10} {layout.summary}" for name, layout in KG_FORMATS.items())
    parser.epilog = (
        f"layouts:\n{layouts}\n\nA killed conversion continues when the same command is given again; "
        "nothing appears at PATH until it is complete."
    )
    parser.add_argument("source", help="file or directory to read")
    parser.add_argument("path", help="directory to create")
    parser.add_argument(
        "--from", dest="format", choices=list(KG_FORMATS), help="layout of the source (default: found out)"
    )
    add_kg_options(parser, train=1.0)
    parser.add_argument(
        "--inductive", type=float, metavar="SHARE", help="gids: share of the entities that training does not see"
    )
    parser.add_argument("--inverses", action="store_true", help="wordnet: keep relations that repeat another backwards")
    group = parser.add_argument_group("text")
    group.add_argument("--separator", help="one character (default: comma for .csv, else tab)")
    group.add_argument("--columns", default="hrt", help="order of head, relation, tail in a line (default hrt)")
    group.add_argument("--header", action="store_true", help="the first line names the columns")
    group.add_argument("--numeric", action="store_true", help="fields are ids from 0 on; no names are kept")
    group.add_argument("--literals", action="store_true", help="N-Triples: keep literals, as entities")


def kg_options(args: argparse.Namespace, progress: Progress | None) -> KgOptions:
    """Collect the shared options."""
    names = ("reverse", "identity", "valid", "test", "train", "seed", "overwrite")
    return KgOptions(**{name: getattr(args, name) for name in names}, progress=progress)


def run(args: argparse.Namespace) -> None:
    """Convert and print what was made."""
    text = TextOptions(args.separator, args.columns, args.header, args.numeric, args.literals)
    with progress_bars(not args.quiet) as progress:
        dataset = convert_kg(
            args.source,
            args.path,
            format=args.format,
            options=kg_options(args, progress),
            text=text,
            inverses=args.inverses,
            inductive_share=args.inductive,
        )
    print_summary(dataset)
