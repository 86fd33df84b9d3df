"""The hook transform= on a device: called on the consumer's thread, with torch's and CuPy's stream that of the hand-over.

CuPy itself cannot compute here (case_cupy.py says why), so a module of its name stands for its current stream. The examples
of docs/examples that need CuPy are compiled; their kernel is compiled by NVRTC.
"""

import ast
import sys
import threading
import types
from pathlib import Path

import fake_torch
import pytest
import torch

import gids
from gids.cuda.compile import load_cuda_core, nvrtc_version

EXAMPLES = Path(__file__).resolve().parents[4] / "docs" / "examples"
OPTIONS = {
    "fanouts": [3, 4], "batch_size": 48, "order": gids.OrderOptions(seed=5),
    "memory": gids.MemoryOptions(device_budget="48MiB"),
}  # fmt: skip


@pytest.mark.pooled
def test_the_stream_of_the_hand_over_is_everybodys(dataset, monkeypatch):
    current = []

    class ExternalStream:
        def __init__(self, handle, device):
            self.handle, self.device = handle, device

        def __enter__(self):
            current.append(self)

        def __exit__(self, *_):
            current.pop()

    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(ExternalStream=ExternalStream)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    seen, consumer = [], fake_torch.Stream()

    def transform(batch):
        (stream,) = current
        seen.append((threading.get_ident(), stream.handle, stream.device, torch.cuda.current_stream().cuda_stream))
        batch.x.add_(1)

    with gids.Loader(dataset, "train", **OPTIONS) as loader:
        expected = [batch.x + 1 for batch in loader]
    output = gids.OutputOptions(transform=transform)
    with torch.cuda.stream(consumer), gids.Loader(dataset, "train", device="cuda", output=output, **OPTIONS) as loader:
        got = [batch.x for batch in loader]
    assert len(got) == len(expected) == len(seen) > 3
    assert all(torch.equal(mine.cpu(), theirs) for mine, theirs in zip(got, expected, strict=True))
    assert set(seen) == {(threading.get_ident(), consumer.cuda_stream, 0, consumer.cuda_stream)}
    assert not current


def test_the_raw_kernel_of_the_example_compiles():
    nvrtc_version()
    tree = ast.parse((EXAMPLES / "transform_raw_kernel.py").read_text())
    (source,) = (n.value.value for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "SOURCE")
    core = load_cuda_core()
    program = core.Program(source, "c++", core.ProgramOptions(arch="sm_80"))
    assert len(program.compile("cubin").code) > 500


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("transform_*.py")))
def test_every_example_gives_the_hook_to_a_loader(name):
    text = (EXAMPLES / name).read_text()
    compile(text, name, "exec")
    assert "OutputOptions(transform=" in text
