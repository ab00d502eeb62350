// One loop that the compiler turns into vector instructions.
#include "summarize.h"

namespace onnxfq {
namespace cpu {

FQ_CLONES void summarize_block(const float* x, int64_t count, Summary* summary, uint16_t* bins) {
  int32_t min_key = std::numeric_limits<int32_t>::max();
  int32_t max_key = std::numeric_limits<int32_t>::min();
  uint32_t min_magnitude_less_one = std::numeric_limits<uint32_t>::max();
  int32_t finites = 0;
  int32_t nans = 0;
  int32_t zeros = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = float_bits(x[i] + 0.0f);  // + 0: -0 is counted as +0
    const uint32_t magnitude = bits & kMagnitudeMask;
    // Masks, all ones or all zeros, instead of conditions: the compiler turns conditions that exclude each
    // other into branches and then does not vectorise.
    const int32_t below_infinity = static_cast<int32_t>(magnitude - kInfinityBits);
    const int32_t finite = below_infinity >> 31;
    const int32_t key = order_key(bits) & finite;
    const int32_t low = key | (std::numeric_limits<int32_t>::max() & ~finite);
    const int32_t high = key | (std::numeric_limits<int32_t>::min() & ~finite);
    min_key = low < min_key ? low : min_key;
    max_key = high > max_key ? high : max_key;
    // Zero wraps around to the largest number and thereby never is the smallest.
    const uint32_t less_one = magnitude - 1u;
    min_magnitude_less_one = less_one < min_magnitude_less_one ? less_one : min_magnitude_less_one;
    finites -= finite;
    nans -= -below_infinity >> 31;
    zeros -= static_cast<int32_t>(less_one) >> 31;
    const uint32_t zero = static_cast<uint32_t>(static_cast<int32_t>(less_one) >> 31);
    const uint32_t aside = zero & (kZeroSlot | (static_cast<uint32_t>(i) & (kZeroSlots - 1)));
    bins[i] = static_cast<uint16_t>(bin_of(bits) | aside);  // the bin of zero is 0
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

}  // namespace cpu
}  // namespace onnxfq
