#pragma once
// What code that launches kernels needs of the device room. Functions of builds with CUDA.

namespace accord {

// After a launch: ends the process if it failed. A launch fails for a reason in the program (a configuration
// that the device lacks, no code for it), or because an earlier kernel spoiled the context; neither can be
// handled. Names the kernel and the error.
void check_launch(const char* kernel);

// A launch function's preconditions: ends the process, naming the condition, if it does not hold. Shapes and dtypes
// are checked before (check_mxfp8_shape and the like), so a broken one is the caller's bug.
void require(bool holds, const char* condition);

// Multiprocessors of the calling thread's device.
int num_multiprocessors();

}  // namespace accord
