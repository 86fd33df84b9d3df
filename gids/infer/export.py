"""Results as Parquet, with the ids that nodes had before they were relabelled; needs pyarrow (``pip install 'gids[parquet]'``)."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from gids.dataset import Dataset
from gids.dataset.journal import sync_directory
from gids.dataset.rows import as_tensor, read_rows
from gids.errors import ConfigError, DatasetError
from gids.units import parse_bytes

#: Bytes of rows that are in memory at a time.
PIECE_BYTES = 32 << 20


def check_parquet(directory: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """Return where Parquet files will be; raise where they cannot be written."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigError("writing Parquet needs pyarrow (pip install 'gids[parquet]')")
    target = Path(directory).absolute()
    if target.exists() and not overwrite:
        raise DatasetError(f"{target} exists; choose another path or ask to overwrite it")
    return target


def to_parquet(
    results: Dataset,
    directory: str | os.PathLike[str],
    *,
    ntype: str | None = None,
    part: int | str = "256MiB",
    overwrite: bool = False,
) -> list[Path]:
    """Write every feature table of a node type as columns of Parquet files, ``part-00000.parquet`` and so on.

    Column ``id`` holds the original ids of the nodes, where they were relabelled. Tables of one value a row are plain
    columns, others lists of fixed length. The directory appears when everything is written.

    Parameters
    ----------
    results : Dataset
        What :func:`gids.infer` wrote.
    directory : path-like
        Directory to make.
    ntype : str, optional
        Node type, where there are several.
    part : int or str
        Bytes of rows in a file.
    overwrite : bool
        Replace the directory.
    """
    target = check_parquet(directory, overwrite=overwrite)
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    tables = {name: results.feature_table(ntype, name) for name in results.feature_names(ntype)}
    if not tables:
        raise ConfigError(f"{results.path} must have tables to write (it has none)")
    ids = results.original_ids(ntype)
    count = next(iter(tables.values())).num_rows
    row_bytes = 8 + sum(table.row_bytes for table in tables.values())
    per_part = max(1, parse_bytes(part, "part") // row_bytes)
    per_piece = max(1, min(PIECE_BYTES // row_bytes, per_part))
    temporary = target.with_name(f".{target.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    paths = []
    try:
        for number, begin in enumerate(range(0, max(count, 1), per_part)):
            end, path = min(begin + per_part, count), temporary / f"part-{number:05}.parquet"
            writer: Any = None
            for first in range(begin, max(end, begin + 1), per_piece):
                last = min(first + per_piece, end)
                columns: dict[str, Any] = {"id": np.arange(first, last) if ids is None else ids[first:last]}
                for name, table in tables.items():
                    rows = as_tensor(table, read_rows(table, first, last))
                    values = rows.float().numpy() if table.dtype == "bfloat16" else rows.numpy()
                    flat = arrow.array(values.reshape(-1))
                    columns[name] = flat if table.dim == 1 else arrow.FixedSizeListArray.from_arrays(flat, table.dim)
                piece = arrow.table(columns)
                writer = writer or parquet.ParquetWriter(path, piece.schema)
                writer.write_table(piece)
            writer.close()
            with path.open("rb") as file:
                os.fsync(file.fileno())
            paths.append(target / path.name)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise DatasetError(f"writing {target} failed: {error.strerror or error}") from error
    sync_directory(temporary)
    if target.exists():
        shutil.rmtree(target)
    temporary.rename(target)
    sync_directory(target.parent)
    return paths
