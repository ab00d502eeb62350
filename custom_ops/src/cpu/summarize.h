// The vectorised half of observing: a block's minimum, maximum and counts, and every element's bin.
#pragma once

#include "onnxfq/statistics.h"

namespace onnxfq {
namespace cpu {

// Elements looked at at a time, 8 KB: read again from the L1 cache when they are counted.
constexpr int64_t kBlock = 2048;

// Zeros, half of all values after ReLU, are known from the summary: they are counted aside, in slots behind
// the bins that are never read, each neighbour in another.
constexpr uint32_t kZeroSlot = kBinCount;
constexpr uint32_t kZeroSlots = 16;

// Merges x[0, count), count <= kBlock, into summary and writes every element's bin or zero slot.
void summarize_block(const float* x, int64_t count, Summary* summary, uint16_t* bins);

// Channels that ONNX Runtime keeps together on AVX-512; where it keeps fewer, lanes are taken one by one.
constexpr int64_t kLanes = 16;
// Rows at a time: a lane's counts of them fit into 32 bits.
constexpr int64_t kMostRows = int64_t{1} << 24;

// Merges lane k of x[rows][kLanes], rows <= kMostRows, into summaries[k]; no bins.
void summarize_lanes(const float* x, int64_t rows, Summary* summaries);

}  // namespace cpu
}  // namespace onnxfq
