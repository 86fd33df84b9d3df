"""``gids infer``: run a model over every node of a dataset, with features and every layer on disk."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gids.errors import ConfigError
from gids.units import format_bytes

if TYPE_CHECKING:
    from gids.dataset import Dataset


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = (
        "A killed run goes on where it was when the same command is given again; nothing appears at OUT until it is "
        "complete. Example: gids infer my-graph answers --model gids.models:GraphSAGE --args "
        '\'{"in_dim": 128, "hidden_dim": 64, "out_dim": 16}\' --weights model.pt --top-k 1 --accuracy test'
    )
    parser.add_argument("dataset", help="directory of the dataset")
    parser.add_argument("out", nargs="?", help="dataset to make; without it the results become tables of the dataset")
    parser.add_argument(
        "--model",
        required=True,
        metavar="MODULE:NAME",
        help="what makes the model: package.module:name or file.py:name",
    )
    parser.add_argument("--args", type=json.loads, default={}, metavar="JSON", help="keyword arguments of that call")
    parser.add_argument("--weights", help="state dict of the model, as torch.save wrote it")
    parser.add_argument("--features", default="feat", help="feature table of the first layer (default feat)")
    parser.add_argument("--edge-features", help="table of edge features that layers get (default none)")
    parser.add_argument("--edge-weights", action="store_true", help="layers get the stored weights of edges")
    parser.add_argument(
        "--fanouts", type=int, nargs="+", help="in-edges drawn per layer, first layer first (default all)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of that draw (default 0)")
    parser.add_argument(
        "--scan",
        action="store_true",
        help="read tables in order and add rows to sums as they pass by: for graphs without locality, and models that "
        "take the sum or the mean of neighbours (GraphSAGE, GCN)",
    )
    parser.add_argument("--nodes", nargs="+", metavar="TYPE", help="node types to compute (default all with in-edges)")
    parser.add_argument("--name", default="embedding", help="of the table of results (default embedding)")
    parser.add_argument("--dtype", help="what results are stored as, e.g. float16 (default as computed)")
    parser.add_argument("--top-k", type=int, help="also write the K best classes of each node, with their values")
    parser.add_argument("--no-rows", action="store_true", help="with --top-k: do not write the results themselves")
    parser.add_argument("--budget", help="memory for everything but the model (default half of what is available)")
    parser.add_argument("--tile", type=int, help="destinations of one call of a layer (default by the graph)")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--device-budget", help="with --device cuda: device memory (default 80 %% of what is free)")
    parser.add_argument("--stripe-dir", action="append", default=[], metavar="DIR", help="spread results over these")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing dataset, or tables of that name")
    parser.add_argument("--accuracy", metavar="SPLIT", help="then print the exact accuracy on the nodes of a split")
    parser.add_argument("--parquet", metavar="DIR", help="then write the results as Parquet too, with original ids")
    parser.add_argument(
        "--plan", action="store_true", help="compute nothing: say which bytes and seconds it would take"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object for machines")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def run(args: argparse.Namespace) -> None:
    """Infer, or say what it would take."""
    from gids.dataset import open_dataset
    from gids.dataset.progress import progress_bars
    from gids.infer import Inference, InferOptions
    from gids.infer.evaluate import labelled
    from gids.infer.export import check_parquet

    dataset = open_dataset(args.dataset)
    if args.accuracy:  # what follows the inference is checked before it: that may take days
        labelled(dataset, args.accuracy)
    if args.parquet:
        check_parquet(args.parquet, overwrite=args.overwrite)
    model = load_model(args.model, args.args, args.weights, args.device)
    with progress_bars(not (args.quiet or args.json or args.plan)) as progress:
        options = InferOptions(
            budget=args.budget,
            features=args.features,
            edge_features=args.edge_features,
            edge_weights=args.edge_weights,
            fanouts=args.fanouts,
            seed=args.seed,
            scan=args.scan,
            nodes=args.nodes,
            name=args.name,
            dtype=args.dtype,
            rows=not args.no_rows,
            top_k=args.top_k,
            tile=args.tile,
            device=args.device,
            device_budget=args.device_budget,
            overwrite=args.overwrite,
            stripe_dirs=args.stripe_dir,
            progress=progress,
        )
        job = Inference(model, dataset, args.out, options)
        if args.plan:
            from gids.infer.forecast import forecast

            found = forecast(job)
            print(json.dumps(found.as_dict(), indent=2) if args.json else "\n".join(found.lines()))
            return
        results = job.run()
    facts = job.facts | {"path": str(results.path)} | _after(args, dataset, results)
    if args.json:
        print(json.dumps(facts, indent=2))
        return
    for number, layer in enumerate(facts["layers"]):
        print(
            f"layer {number}: {format_bytes(layer['bytes_read'])} read, {format_bytes(layer['bytes_written'])} written, "
            f"{layer['seconds']:.1f} s"
        )
    print(f"{results.path}: {', '.join(job.results.names)} of {', '.join(job.nodes)}, {facts['seconds']:.1f} s")
    if args.accuracy:
        print(
            f"accuracy on {args.accuracy}: {100 * facts['accuracy']:.2f} % of {facts['accuracy_nodes']:,} nodes, exact"
        )


def _after(args: argparse.Namespace, dataset: Dataset, results: Dataset) -> dict[str, Any]:
    from gids.infer import accuracy, to_parquet

    facts: dict[str, Any] = {}
    if args.accuracy:
        found = accuracy(results, dataset, args.accuracy, name=args.name, budget=args.budget)
        facts |= {"accuracy": found.share, "accuracy_nodes": found.total}
    if args.parquet:
        many = len(results.node_types) > 1
        for ntype in results.node_types:
            target = Path(args.parquet) / ntype if many else Path(args.parquet)
            to_parquet(results, target, ntype=ntype, overwrite=args.overwrite)
        facts["parquet"] = args.parquet
    return facts


def load_model(name: str, arguments: dict[str, Any], weights: str | None, device: str) -> Any:
    """Make the model that a user names, with its weights, on a device, ready for inference.

    Parameters
    ----------
    name : str
        ``module:name`` or ``file.py:name`` of a callable that returns a model, or layers.
    arguments : dict
        Its keyword arguments.
    weights : str, optional
        File with a state dict.
    device : str
        Where the model is to be.
    """
    import torch

    from gids.infer.layers import compute_device

    home, _, attribute = name.rpartition(":")
    if not home or not isinstance(arguments, dict):
        raise ConfigError(f"--model must be module:name, and --args a JSON object (got {name!r} and {arguments!r})")
    made = getattr(_module(home), attribute, None)
    if made is None or not callable(made):
        raise ConfigError(f"--model must name a callable of {home} (got {attribute!r})")
    try:
        inspect.signature(made).bind(**arguments)
    except TypeError as error:
        raise ConfigError(f"--args must be the keyword arguments of {name}: {error} (got {arguments})") from error
    model = made(**arguments)
    if weights is not None:
        if not isinstance(model, torch.nn.Module):
            raise ConfigError(f"--weights needs a model that is a Module (got {type(model).__name__})")
        try:
            model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
        except (RuntimeError, OSError) as error:
            raise ConfigError(f"--weights must hold the state dict of {name}: {error}") from error
    return model.to(compute_device(torch.device(device))) if isinstance(model, torch.nn.Module) else model


def _module(home: str) -> Any:
    try:
        if not home.endswith(".py"):
            return importlib.import_module(home)
        spec = importlib.util.spec_from_file_location(Path(home).stem, home)
        if spec is None or spec.loader is None:
            raise ImportError(f"{home} cannot be loaded")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module
    except (ImportError, FileNotFoundError) as error:
        raise ConfigError(
            f"--model must name a module or a file that can be imported (got {home!r}: {error})"
        ) from error
