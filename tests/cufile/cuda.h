// What cufile.h takes from NVIDIA's cuda.h, so that the fake needs no toolkit.
#pragma once
#include <stddef.h>
typedef int CUresult;
typedef struct CUstream_st* CUstream;
typedef unsigned long long CUdeviceptr;
