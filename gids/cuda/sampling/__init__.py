"""Sampling on a device: the passes of the CPU samplers as kernels, over topology in pinned host memory."""

from __future__ import annotations

from gids.cuda.sampling.ladies import CudaLadiesSampler
from gids.cuda.sampling.neighbor import CudaLaborSampler, CudaNeighborSampler, CudaShadowSampler
from gids.cuda.sampling.numbering import NodeNumbers
from gids.cuda.sampling.sampler import CudaSampler, DeviceBlock, DeviceSample, as_numpy
from gids.cuda.sampling.topology import PinnedTopology, pin_topology, unpin_topology
from gids.sampling import LaborSampler, LadiesSampler, NeighborSampler, ShadowSampler

__all__ = [
    "CudaLaborSampler",
    "CudaLadiesSampler",
    "CudaNeighborSampler",
    "CudaSampler",
    "CudaShadowSampler",
    "DeviceBlock",
    "DeviceSample",
    "NodeNumbers",
    "PinnedTopology",
    "as_numpy",
    "device_sampler",
    "pin_topology",
    "unpin_topology",
]


def device_sampler(sampler: object) -> CudaSampler | None:
    """Return the device's version of a CPU sampler, or None where there is none: for trees of their own, importance, a user's class."""
    if type(sampler) is NeighborSampler and not sampler.disjoint:
        return CudaNeighborSampler(sampler)
    if type(sampler) is LaborSampler and not sampler.importance:
        return CudaLaborSampler(sampler)
    if type(sampler) is ShadowSampler:
        return CudaShadowSampler(sampler)
    if type(sampler) is LadiesSampler:
        return CudaLadiesSampler(sampler)
    return None
