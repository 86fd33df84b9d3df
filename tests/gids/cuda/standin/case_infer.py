"""gids.infer with device="cuda" writes the bytes that it writes on the CPU: sampled, cached and gathered on the device."""

import pytest
import torch

import gids
from gids.models import GCN, GraphSAGE

pytestmark = pytest.mark.pooled


def written(dataset):
    return {str(f.relative_to(dataset.path)): f.read_bytes() for f in dataset.path.rglob("*.bin")}


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (GraphSAGE, {}),
        (GraphSAGE, {"fanouts": [3, 2], "seed": 4}),
        (GCN, {}),
    ],
)
def test_the_same_bytes_as_on_the_cpu(dataset, tmp_path, monkeypatch, model, options):
    for module in ("layers", "run"):  # what the fake hands over as CUDA tensors are copies in host memory
        monkeypatch.setattr(f"gids.infer.{module}.compute_device", lambda device: torch.device("cpu"))
    torch.manual_seed(0)
    model = model(dataset.num_features, 12, 4, 2)
    options = {"tile": 256, "top_k": 1} | options
    cpu = gids.infer(model, dataset, tmp_path / "cpu", budget="64MiB", **options)
    device = gids.infer(model, dataset, tmp_path / "cuda", device="cuda", device_budget="48MiB", **options)
    assert written(cpu) == written(device)
