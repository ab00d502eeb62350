// The loops of the CUDA kernels, run on the host.
#pragma once

// Stops the program at the first difference to the CPU's kernels.
void test_cuda_loops();
