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

// Lanes of a vector: element i of a row of channels belongs to lane i % kLanes.
constexpr int64_t kLanes = 16;

// Merges the finite values of x[0, count) into the ranges of their lanes.
void merge_lanes(const float* x, int64_t count, Range* lanes);

}  // namespace cpu
}  // namespace onnxfq
