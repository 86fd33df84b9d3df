"""Which layouts can be converted, how they are told apart, and the one function that converts."""

from __future__ import annotations

import inspect
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gids.convert import arrays, frameworks, ginex, graphbolt, igb, mag240m, ogb, parquet
from gids.convert.graph import ConvertOptions, Graph, write_graph
from gids.dataset import Dataset
from gids.dataset.strict import DAMAGE
from gids.errors import ConfigError, DatasetError, GidsError


@dataclass(frozen=True)
class Format:
    """A layout: a line about it, whether a path has it, and how it is read."""

    summary: str
    matches: Callable[[Path], bool]
    read: Callable[..., Graph]


#: In the order in which a path is tried.
FORMATS: dict[str, Format] = {
    "graphbolt": Format("GraphBolt directory with a metadata.yaml", graphbolt.matches, graphbolt.read),
    "ginex": Format("conf.json and .dat files of Ginex and GNNDrive", ginex.matches, ginex.read),
    "parquet": Format(
        "folders nodes/ and edges/ of Parquet parts (Spark, Beam, BigQuery)", parquet.matches, parquet.read
    ),
    "ogb": Format("OGB node-property dataset, .csv.gz or .npz", ogb.matches, ogb.read),
    "mag240m": Format("MAG240M of OGB-LSC", mag240m.matches, mag240m.read),
    "igb": Format("Illinois Graph Benchmark, homogeneous or heterogeneous", igb.matches, igb.read),
    "dgl": Format("file of dgl.save_graphs with one graph", frameworks.matches_dgl, frameworks.read_dgl),
    "pyg": Format("torch.save of a PyG Data or HeteroData", frameworks.matches_pyg, frameworks.read_pyg),
    "arrays": Format("directory of .npy arrays, or an edge list", arrays.matches, arrays.read),
}


def detect(source: str | os.PathLike[str]) -> str:
    """Name the layout of a file or directory."""
    path = Path(source)
    if not path.exists():
        raise DatasetError(f"{path} must be a file or directory (there is none)")
    for name, layout in FORMATS.items():
        if layout.matches(path):
            return name
    raise DatasetError(f"{path} must have one of the layouts {', '.join(FORMATS)} (it looks like none of them)")


def convert(
    source: Any,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    options: ConvertOptions | None = None,
    **details: Any,
) -> Dataset:
    """Convert a graph in another layout, or in memory, to a dataset; also as :func:`gids.convert`.

    Memory stays bounded except for ``dgl`` and ``pyg`` files, which their frameworks load whole. A killed conversion
    continues when it is started again with the same arguments; until it is complete nothing appears at ``path``.

    Parameters
    ----------
    source : path-like, Data, HeteroData, DGLGraph or dict
        File or directory to read; or a graph in memory, of PyG (also a dict with its keys) or of DGL.
    path : path-like
        Directory to create.
    format : str, optional
        A key of :data:`FORMATS`; found from the files where it is not given.
    options : ConvertOptions, optional
        How to write.
    **details
        For one format: ``files`` (:class:`ArrayFiles`, ``arrays``), ``num_classes`` (``igb``), ``trust`` (``pyg``).
    """
    if not isinstance(source, str | os.PathLike):
        if format is not None or details:
            raise ConfigError(f"a graph in memory takes no format and no details (got {format!r}, {sorted(details)})")
        return write_graph(frameworks.in_memory(source), None, path, options or ConvertOptions())
    name = detect(source) if format is None else format
    if name not in FORMATS:
        raise ConfigError(f"format must be one of {', '.join(FORMATS)} (got {name!r})")
    origin = Path(source)
    if not origin.exists():
        raise DatasetError(f"{origin} must be a file or directory (there is none)")
    return write_graph(read_layout(name, origin, **details), origin, path, options or ConvertOptions())


def read_layout(name: str, origin: Path, **details: Any) -> Graph:
    """Return the parts of a graph in another layout; whatever its files hold, the answer is that or a DatasetError.

    Parameters
    ----------
    name : str
        A key of :data:`FORMATS`.
    origin : Path
        File or directory to read.
    **details
        As for :func:`convert`.
    """
    read = FORMATS[name].read
    inspect.signature(read).bind(origin, **details)  # a wrong detail is a mistake of the caller's, not of the files'
    try:
        return read(origin, **details)
    except GidsError:
        raise
    except FileNotFoundError as error:
        raise DatasetError(f"{error.filename} must be a file of this {name} dataset (there is none)") from error
    except (*DAMAGE, EOFError, OSError, zlib.error) as error:
        raise DatasetError(f"{origin} must be a whole {name} dataset ({type(error).__name__}: {error})") from error
