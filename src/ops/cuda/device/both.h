// Functions that are neither the host's nor the device's: index mathematics and decisions that kernels share
// with tests.
#pragma once

#ifdef __CUDACC__
#define PIVOT_BOTH __host__ __device__ __forceinline__
#else
#define PIVOT_BOTH inline
#endif
