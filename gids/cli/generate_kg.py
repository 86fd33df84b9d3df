"""``gids generate kg``: make a synthetic knowledge graph."""

from __future__ import annotations

import argparse

from gids.cli.convert_kg import add_kg_options, kg_options
from gids.cli.generate import count
from gids.cli.info import print_summary


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = "Memory stays bounded at any size; a killed run continues when the same command is given again."
    parser.add_argument("path", help="directory to create")
    parser.add_argument("--entities", type=count, default=100_000, help="entities, e.g. 2.5M (default 100k)")
    parser.add_argument("--relations", type=count, default=64, help="relations (default 64)")
    parser.add_argument("--degree", type=float, default=8.0, help="mean triples of a head (default 8)")
    parser.add_argument("--communities", type=count, help="groups of entities (default: one for every 100)")
    parser.add_argument("--locality", type=float, default=0.8, help="share of tails of the own group (default 0.8)")
    parser.add_argument("--skew", type=int, default=2, help="preference for popular tails, 1 is none (default 2)")
    parser.add_argument(
        "--relation-skew", type=float, default=3.0, help="preference for frequent relations, 1 is none (default 3)"
    )
    add_kg_options(parser, train=0.1)


def run(args: argparse.Namespace) -> None:
    """Generate and print what was made."""
    from gids import generate
    from gids.dataset.progress import progress_bars

    with progress_bars(not args.quiet) as progress:
        dataset = generate.knowledge(
            args.path,
            num_entities=args.entities,
            num_relations=args.relations,
            degree=args.degree,
            communities=args.communities,
            locality=args.locality,
            skew=args.skew,
            relation_skew=args.relation_skew,
            options=kg_options(args, progress),
        )
    print_summary(dataset)
