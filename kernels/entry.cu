// Every entry point of the CUDA backend, as one translation unit: NVRTC then reads CCCL's headers once per build.
#include "entry_gather.cuh"
#include "entry_layers.cuh"
#include "entry_nvme.cuh"
#include "entry_plan.cuh"
#include "entry_random.cuh"
#include "entry_rank.cuh"
#include "entry_sampling.cuh"
#include "entry_scan.cuh"
