// Loops that the compiler turns into vector instructions.
#include "summarize.h"

namespace onnxfq {
namespace cpu {
namespace {

// Contribution of one value to a summary. Masks, all ones or all zeros, instead of conditions: the compiler turns
// conditions that exclude each other into branches and then does not vectorise.
struct Look {
  uint32_t bits;
  uint32_t less_one;  // magnitude minus one; zero wraps around to the largest number and never is the smallest
  int32_t finite;
  int32_t nan;
  int32_t zero;
  int32_t low;  // the order key where finite, else what is never the smallest, or the largest
  int32_t high;

  FQ_INLINE explicit Look(float x) {
    bits = float_bits(x + 0.0f);  // + 0: -0 is counted as +0
    const uint32_t magnitude = bits & kMagnitudeMask;
    const int32_t below_infinity = static_cast<int32_t>(magnitude - kInfinityBits);
    finite = below_infinity >> 31;
    const int32_t key = order_key(bits) & finite;
    low = key | (std::numeric_limits<int32_t>::max() & ~finite);
    high = key | (std::numeric_limits<int32_t>::min() & ~finite);
    less_one = magnitude - 1u;
    nan = -below_infinity >> 31;
    zero = static_cast<int32_t>(less_one) >> 31;
  }
};

}  // namespace

FQ_CLONES void summarize_block(const float* x, int64_t count, Summary* summary, uint16_t* bins) {
  int32_t min_key = std::numeric_limits<int32_t>::max();
  int32_t max_key = std::numeric_limits<int32_t>::min();
  uint32_t min_magnitude_less_one = std::numeric_limits<uint32_t>::max();
  int32_t finites = 0;
  int32_t nans = 0;
  int32_t zeros = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Look look(x[i]);
    min_key = look.low < min_key ? look.low : min_key;
    max_key = look.high > max_key ? look.high : max_key;
    min_magnitude_less_one = look.less_one < min_magnitude_less_one ? look.less_one : min_magnitude_less_one;
    finites -= look.finite;
    nans -= look.nan;
    zeros -= look.zero;
    const uint32_t aside = static_cast<uint32_t>(look.zero) & (kZeroSlot | (static_cast<uint32_t>(i) & (kZeroSlots - 1)));
    bins[i] = static_cast<uint16_t>(bin_of(look.bits) | aside);  // the bin of zero is 0
  }
  Summary block;
  block.min_key = min_key;
  block.max_key = max_key;
  block.min_magnitude_less_one = min_magnitude_less_one;
  block.elements = count;
  block.nans = nans;
  block.infinities = count - finites - nans;
  block.zeros = zeros;
  summary->merge(block);
}

FQ_CLONES void merge_lanes(const float* x, int64_t count, Range* lanes) {
  int32_t min_key[kLanes];
  int32_t max_key[kLanes];
  for (int64_t k = 0; k < kLanes; ++k) {
    min_key[k] = lanes[k].min_key;
    max_key[k] = lanes[k].max_key;
  }
  int64_t done = 0;
  for (; done + kLanes <= count; done += kLanes) {
    FQ_GROUP
    for (int64_t k = 0; k < kLanes; ++k) {
      const Look look(x[done + k]);
      min_key[k] = look.low < min_key[k] ? look.low : min_key[k];
      max_key[k] = look.high > max_key[k] ? look.high : max_key[k];
    }
  }
  for (int64_t k = 0; done + k < count; ++k) {
    const Look look(x[done + k]);
    min_key[k] = look.low < min_key[k] ? look.low : min_key[k];
    max_key[k] = look.high > max_key[k] ? look.high : max_key[k];
  }
  for (int64_t k = 0; k < kLanes; ++k) lanes[k] = {min_key[k], max_key[k]};
}

}  // namespace cpu
}  // namespace onnxfq
