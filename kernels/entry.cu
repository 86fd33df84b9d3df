// Every entry point of the CUDA backend, as one translation unit: NVRTC then reads CCCL's headers once per build.
#include "entry_random.cuh"
