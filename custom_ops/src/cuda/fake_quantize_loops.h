// FakeQuantize on a GPU: what one thread does.
#pragma once

#include <type_traits>

#include "device_layout.h"
#include "packets.h"

namespace onnxfq {
namespace cuda {

// x and y as kernels take them.
struct Mapped {
  const void* x;
  void* y;
  Packets range;
};

// Quantizes the elements that the thread at `place` has to take; quantize is a PerTensor or a ByLayout. A packet
// with one scale, the usual case, is stored at once.
template <ElementType T, typename Quantize>
FQ_HD FQ_INLINE void map_elements(const Mapped& mapped, const Place& place, const Quantize& quantize) {
  using Stored = typename Element<T>::Stored;
  const Stored* const x = static_cast<const Stored*>(mapped.x);
  Stored* const y = static_cast<Stored*>(mapped.y);
  for_elements<T>(
      mapped.x, mapped.range, place,
      [&](const Packet<T>& packet, int64_t first) {
        constexpr int kSize = Packet<T>::kSize;
        Packet<T> result;
        const bool one_scale = quantize.with(first, kSize, [&](const auto& quantizer) {
          FQ_UNROLL
          for (int k = 0; k < kSize; ++k) {
            result.element[k] = Element<T>::write(quantizer(Element<T>::read(packet.element[k])));
          }
        });
        if (!one_scale) {
          uint32_t words[kWordsOfPacket];
          memcpy(words, &packet, sizeof words);
          quantize.template each<T>(first, words);
          memcpy(&result, words, sizeof words);
        }
        store(result, y + first);
      },
      [&](int64_t i) {
        quantize.with(i, 1, [&](const auto& quantizer) {
          y[i] = Element<T>::write(quantizer(Element<T>::read(x[i])));
        });
      });
}

// One scale for all of x: in registers.
template <typename Quantizer>
struct PerTensor {
  Quantizer quantizer;

  template <typename Body>
  FQ_HD FQ_INLINE bool with(int64_t, int, const Body& body) const {
    body(quantizer);
    return true;
  }

  template <ElementType T>
  FQ_HD FQ_INLINE void each(int64_t, uint32_t (&)[kWordsOfPacket]) const {}
};

// Scales by layout.
template <typename Quantizers, typename Index>
struct ByLayout {
  const Quantizers& quantizers;
  const Params& params;
  const DeviceLayout<Index>& layout;

  // Calls body with the quantizer of elements [first, first + count), if they have one together.
  template <typename Body>
  FQ_HD FQ_INLINE bool with(int64_t first, int count, const Body& body) const {
    const Reach<Index> reach = layout.at(first);
    if (reach.in_block < count) return false;
    body(of(reach.param));
    return true;
  }

  // Quantizes the elements of a packet that begins at `first`, each with its own scale. The words go round: the first
  // is worked on and comes back as the last, for an index into them would make them lie in memory.
  template <ElementType T>
  FQ_HD FQ_INLINE void each(int64_t first, uint32_t (&words)[kWordsOfPacket]) const {
    Reach<Index> reach = layout.at(first);
    // Straight code takes long to compile: for the rounding of every standard only.
    if constexpr (!std::is_same_v<typename Quantizers::RoundType, RoundToAny>) {
      if (layout.consecutive(reach, Packet<T>::kSize)) {
        FQ_UNROLL
        for (int w = 0; w < kWordsOfPacket; ++w) {
          uint32_t made = 0;
          FQ_UNROLL
          for (int k = 0; k < kElementsOfWord<T>; ++k) {
            made |= word_of<T>(once(reach.param + w * kElementsOfWord<T> + k)(element_of<T>(words[w], k)), k);
          }
          words[w] = made;
        }
        return;
      }
    }
    FQ_NO_UNROLL
    for (int w = 0; w < kWordsOfPacket; ++w) {
      uint32_t made = 0;
      FQ_UNROLL
      for (int k = 0; k < kElementsOfWord<T>; ++k) {
        made |= word_of<T>(once(reach.param)(element_of<T>(words[0], k)), k);
        layout.advance(reach, ++first);
      }
      FQ_UNROLL
      for (int i = 0; i + 1 < kWordsOfPacket; ++i) words[i] = words[i + 1];
      words[kWordsOfPacket - 1] = made;
    }
  }

  FQ_HD FQ_INLINE auto of(int64_t param) const { return quantizers(scale(param), zero_point(param)); }
  FQ_HD FQ_INLINE auto once(int64_t param) const { return quantizers.once(scale(param), zero_point(param)); }
  FQ_HD FQ_INLINE float scale(int64_t param) const { return FQ_READ_ONLY(params.scale + param); }
  FQ_HD FQ_INLINE float zero_point(int64_t param) const {
    return params.zero_point ? FQ_READ_ONLY(params.zero_point + param) : 0.0f;
  }
};

}  // namespace cuda
}  // namespace onnxfq
