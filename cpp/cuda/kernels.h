// Launches the kernels on a CUDA device. Arguments hold device pointers; nothing is copied, allocated or waited for.
//
// Each throws std::runtime_error with CUDA's reason where the launch fails. `stream` is a cudaStream_t.

#pragma once

#include "cuda/selector_walk.h"
#include "cuda/two_tap_conv.h"
#include "cuda/verify_rows.h"

namespace dflash::cuda {

void launch(const SelectorWalk & kernel, int n_sequences, void * stream);
void launch(const TwoTapConv & kernel, void * stream);
void launch(const RowStats & kernel, int n_rows, void * stream);
void launch(const Judge & kernel, int n_sequences, void * stream);
void launch(const Bonus & kernel, int n_sequences, void * stream);

// How many devices can run them; 0 where there is no driver either.
int n_devices();

}  // namespace dflash::cuda
