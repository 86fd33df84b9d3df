"""RED-GNN and NBFNet on WordNet's inductive split: the same losses through slices and through exact extraction, to the bit.

    python -m experiments.kg_wordnet DATABASE WORK [--model nbfnet] [--epochs 2] [--queries 4000]

DATABASE is WordNet's directory (Debian: /usr/share/wordnet, from wordnet-base), WORK a directory for the datasets.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

import gids
from gids.convert.kg import KgOptions, convert_kg
from gids.kg import Answers, Loader, filtered_ranks, with_reverse
from gids.models import NbfNet, RedGnn, ranking_loss

MODELS = {"red-gnn": RedGnn, "nbfnet": NbfNet}


def prepare(database: Path, work: Path) -> gids.Dataset:
    """Convert WordNet, then divide it by entities: a fifth of the synsets is never seen in training."""
    if not (work / "inductive").exists():
        work.mkdir(parents=True, exist_ok=True)
        if not (work / "wordnet").exists():
            convert_kg(database, work / "wordnet", options=KgOptions(reverse=True))
        both = KgOptions(reverse=True, identity=True)
        convert_kg(work / "wordnet", work / "inductive", inductive_share=0.2, options=both)
    return gids.open(work / "inductive")


def queries_of(dataset: gids.Dataset, split: str, limit: int, seed: int = 0) -> np.ndarray:
    """Choose queries of a split by lot, in both directions."""
    queries = dataset.knowledge.queries(split)
    chosen = np.sort(np.random.default_rng(seed).permutation(len(queries))[: limit // 2])
    return with_reverse(dataset.knowledge, queries[chosen])


def train(dataset: gids.Dataset, args: argparse.Namespace, through: str) -> tuple[torch.nn.Module, list[float], float]:
    """Train a model; return it, every loss, and the seconds that the loader took."""
    torch.manual_seed(0)
    known = dataset.knowledge
    model = MODELS[args.model](known.num_relations, args.dim, layers=args.hops)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    candidates = len(dataset.split("train", "entity"))
    queries = queries_of(dataset, "train", args.queries)
    losses: list[float] = []
    waited = 0.0
    with Loader(
        dataset, split=queries, batch_size=args.batch, hops=args.hops, remove_target=True, through=through
    ) as loader:
        for _ in range(args.epochs):
            batches: Iterator[gids.kg.Batch] = iter(loader)
            while True:
                begin = time.perf_counter()
                batch = next(batches, None)
                waited += time.perf_counter() - begin
                if batch is None:
                    break
                scores = model(batch.subgraphs, batch.relations)
                loss = ranking_loss(scores, batch.subgraphs.node_ptr, batch.tail_positions, candidates) / len(batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
    return model, losses, waited


def evaluate(dataset: gids.Dataset, model: torch.nn.Module, args: argparse.Namespace) -> dict[str, float]:
    """Rank the answers of test queries, whose entities training has not seen, among all entities of their side."""
    answers = Answers(dataset.knowledge, dataset.knowledge.splits)
    candidates = len(dataset.split("test", "entity"))
    queries = queries_of(dataset, "test", args.test_queries)
    ranks = []
    in_order = gids.OrderOptions(shuffle=False)
    with (
        Loader(dataset, split=queries, batch_size=args.batch, hops=args.hops, order=in_order) as loader,
        torch.no_grad(),
    ):
        for batch in loader:
            ranks.append(filtered_ranks(batch, model(batch.subgraphs, batch.relations), answers, candidates))
    rank = torch.cat(ranks)
    return {
        "queries": len(rank),
        "candidates": candidates,
        "mrr": float((1 / rank).mean()),
        "hits@1": float((rank <= 1).float().mean()),
        "hits@10": float((rank <= 10).float().mean()),
    }


def compare(dataset: gids.Dataset, args: argparse.Namespace) -> dict[str, object]:
    """Train a model both ways, compare every loss, and rank test queries before and after."""
    results = {through: train(dataset, args, through) for through in ("slices", "graph")}
    model, losses, _ = results["slices"]
    torch.manual_seed(0)
    untrained = MODELS[args.model](dataset.knowledge.num_relations, args.dim, layers=args.hops)
    return {
        "model": args.model,
        "batches": len(losses),
        "first_loss": losses[0],
        "last_loss": sum(losses[-20:]) / len(losses[-20:]),
        "losses_equal_to_the_bit": losses == results["graph"][1],
        "seconds_waited": {through: round(result[2], 2) for through, result in results.items()},
        "test": evaluate(dataset, model, args),
        "untrained": evaluate(dataset, untrained, args),
    }


def main(argv: list[str] | None = None) -> dict[str, object]:
    """Train both ways, compare every loss, evaluate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--model", choices=list(MODELS), default="red-gnn")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--queries", type=int, default=4000, help="training queries, both directions together")
    parser.add_argument("--test-queries", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--hops", type=int, default=3)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args(argv)
    report = compare(prepare(args.database, args.work), args)
    print(json.dumps(report, indent=1))
    return report


if __name__ == "__main__":
    main()
