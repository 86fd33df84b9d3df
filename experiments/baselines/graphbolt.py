"""DGL's GraphBolt, where an interpreter that has it exists."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import ClassVar

import numpy as np

import gids
from experiments.baselines.checksum import hashes_path
from experiments.baselines.contender import Contender
from experiments.baselines.job import Job

#: Names a Python with dgl 2.1.0 and the torch 2.2.1 that its library was built for; no torch that gids uses has one.
VARIABLE = "GIDS_GRAPHBOLT_PYTHON"
#: Orders of this many epochs are written down for the other interpreter, which has no gids.
EPOCHS = 16


class GraphBolt(Contender):
    """Runs in an interpreter of its own (:mod:`experiments.baselines.graphbolt_process`)."""

    ABOUT: ClassVar[str] = "GraphBolt's sampler and feature store over a mapped file with MADV_RANDOM (dgl 2.1.0)"
    PAGE_CACHE = True
    SEPARATE = True

    @classmethod
    def unavailable(cls, job: Job) -> str:
        python = os.environ.get(VARIABLE)
        if not python:
            return (
                f"GraphBolt's library for torch <= 2.2.1 cannot be loaded beside this torch: set {VARIABLE} to a Python "
                "with torch==2.2.1 dgl==2.1.0 torchdata==0.7.1 'numpy<2' 'pandas<3' pydantic pyyaml 'setuptools<71'"
            )
        # Versions only: importing it takes ten seconds, and its process says so if it cannot.
        ask = "from importlib.metadata import version; print(version('dgl'), version('torch'))"
        check = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
        if check.returncode:
            return f"{python} has no GraphBolt: {check.stderr.strip().splitlines()[-1]}"
        return ""

    @classmethod
    def command(cls, name: str, job: Job) -> list[str]:
        dataset = gids.open(job.data)
        table, indices = dataset.feature_table(), dataset.indices_table()
        orders = dataset.scratch_dir / f"orders-{job.batch_size}-{job.batches}-{job.seed}.npy"
        epochs = [job.order(dataset, epoch) for epoch in range(EPOCHS)]
        np.save(orders, [np.concatenate([e[i].seeds["_N"].numpy() for i in range(job.batches)]) for e in epochs])
        indptr = dataset.scratch_dir / "indptr.npy"
        np.save(indptr, dataset.indptr())
        spec = {
            "orders": str(orders),
            "indptr": str(indptr),
            "indices": [str(indices.stripes[0].path), indices.dtype, indices.num_rows, indices.stripes[0].data_offset],
            "features": [str(job.feature_path(dataset)), table.dtype, table.num_rows, table.stripes[0].data_offset],
            "dim": table.dim,
            "hashes": str(hashes_path(dataset)),
            "fanouts": job.fanouts,
            "batch_size": job.batch_size,
            "seed": job.seed,
        }
        script = Path(__file__).with_name("graphbolt_process.py")
        return [os.environ[VARIABLE], str(script), json.dumps(spec)]
