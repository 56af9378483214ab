// Marks what runs on a GPU, too. Nothing where no CUDA compiler reads it.

#pragma once

#ifdef __CUDACC__
#define DFLASH_HD __host__ __device__
#else
#define DFLASH_HD
#endif
