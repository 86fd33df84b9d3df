"""What the tests' own processes must be: torch is torch, whatever else was collected beside a test."""

import torch


def test_torch_is_not_replaced():
    """By the stand-in's (tests/standin/fake_torch.py), which belongs into processes that ask for it by name."""
    replaced = (torch.cuda.is_available, torch.cuda.device_count, torch.cuda.current_stream, torch.cuda.synchronize)
    assert {function.__module__ for function in replaced} <= {"torch.cuda", "torch.cuda.streams"}
    assert type(torch.Tensor.to).__name__ == "method_descriptor"
    assert type(torch._C._from_dlpack).__name__ == "builtin_function_or_method"
