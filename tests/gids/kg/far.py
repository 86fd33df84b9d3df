"""Tensors that say they are on another device, with values computed on the CPU: what mixes devices fails as it would there."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

#: Every torch has this one. ``cuda`` would need a build that knows it: torch ends the process where an operator switches to it.
FAR = torch.device("meta")


class Far(torch.Tensor):
    """A tensor on the far device to everyone who asks."""

    @staticmethod
    def __new__(cls, value):
        layout = {"strides": value.stride(), "storage_offset": value.storage_offset()}
        made = cls._make_wrapper_subclass(cls, value.shape, dtype=value.dtype, device=FAR, **layout)
        made.value = value
        return made

    def __repr__(self):
        return f"Far({self.value})"

    def numpy(self):
        raise TypeError(f"can't convert {self.device} device type tensor to numpy")

    def tolist(self):
        return self.value.tolist()

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return compute(operation, args, kwargs or {})


class FarMode(TorchDispatchMode):
    """Makes new tensors far where their maker names the far device."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return compute(operation, args, kwargs or {})


def compute(operation, args, kwargs):
    """Run an operation on the values; refuse tensors of several devices, as torch does of all but single numbers."""
    tensors = [part for part in tree_leaves((args, kwargs)) if isinstance(part, torch.Tensor)]
    far, device = any(isinstance(tensor, Far) for tensor in tensors), kwargs.get("device")
    if far and operation is not torch.ops.aten._to_copy.default:
        near = [tensor for tensor in tensors if tensor.dim() and not isinstance(tensor, Far)]
        assert not near, (
            f"{operation} was given tensors of the far device and of the CPU, {[list(t.shape) for t in near]}"
        )
    wraps = far if device is None else torch.device(device) == FAR
    if device is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    args, kwargs = tree_map(lambda part: part.value if isinstance(part, Far) else part, (args, kwargs))
    return tree_map(
        lambda part: Far(part) if wraps and isinstance(part, torch.Tensor) else part, operation(*args, **kwargs)
    )


def to_far(model):
    """Move a model's parameters."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(Far(parameter.detach().clone())))
    return model
