// Elements in packets of 16 bytes, the widest access to memory, and what is left over before and behind them.
//
// A kernel's loop is a function of the place of its thread, compiled for the host too: tests run it there for
// every thread of a launch, one after the other.
#pragma once

#include <cstdint>

#include "onnxfq/kernels.h"

namespace onnxfq {
namespace cuda {

constexpr int kPacketBytes = 16;

// Position of a thread in its launch.
struct Place {
  int64_t block;
  int64_t blocks;
  int thread;
  int threads;  // threads of a block

  FQ_HD FQ_INLINE int64_t in_launch() const { return block * threads + thread; }
  FQ_HD FQ_INLINE int64_t all_threads() const { return blocks * threads; }
};

// How elements of a type are stored and moved.
template <ElementType T>
struct Element {
  using Stored = uint16_t;
  static FQ_HD FQ_INLINE float read(Stored half) {
    return T == ElementType::kFloat16 ? float_from_float16(half) : float_from_bfloat16(half);
  }
  static FQ_HD FQ_INLINE Stored write(float x) {
    return T == ElementType::kFloat16 ? float16_from_float(x) : bfloat16_from_float(x);
  }
};

template <>
struct Element<ElementType::kFloat32> {
  using Stored = float;
  static FQ_HD FQ_INLINE float read(Stored x) { return x; }
  static FQ_HD FQ_INLINE Stored write(float x) { return x; }
};

template <ElementType T>
struct alignas(kPacketBytes) Packet {
  using Stored = typename Element<T>::Stored;
  static constexpr int kSize = kPacketBytes / sizeof(Stored);
  Stored element[kPacketBytes / sizeof(Stored)];
};

// A packet as words of 32 bits, each of one float32 or two 16-bit floats.
constexpr int kWordsOfPacket = kPacketBytes / 4;

template <ElementType T>
constexpr int kElementsOfWord = T == ElementType::kFloat32 ? 1 : 2;

// Element number k of a word as float32.
template <ElementType T>
FQ_HD FQ_INLINE float element_of(uint32_t word, int k) {
  if constexpr (T == ElementType::kFloat32) return float_from_bits(word);
  if constexpr (T == ElementType::kBfloat16) return float_from_bits(k == 0 ? word << 16 : word & 0xffff0000u);
  return float_from_float16(static_cast<uint16_t>(k == 0 ? word : word >> 16));
}

// A word with x as element number k, and nothing else in it.
template <ElementType T>
FQ_HD FQ_INLINE uint32_t word_of(float x, int k) {
  if constexpr (T == ElementType::kFloat32) return float_bits(x);
  return static_cast<uint32_t>(Element<T>::write(x)) << (16 * k);
}

// Writes a packet by one access, which an assignment does not ensure, past the L1 cache, where nobody will look
// for it.
template <ElementType T>
FQ_HD FQ_INLINE void store(const Packet<T>& packet, typename Packet<T>::Stored* y) {
#if FQ_DEVICE_CODE
  uint4 words;
  memcpy(&words, &packet, sizeof words);
  __stcg(reinterpret_cast<uint4*>(y), words);
#else
  *reinterpret_cast<Packet<T>*>(y) = packet;
#endif
}

// The packets of an array: elements [head, head + packets * size), at aligned addresses. The others are taken
// one by one.
struct Packets {
  int64_t count;
  int64_t head;
  int64_t packets;
  int64_t behind;  // the first element behind the packets

  // other: a second array that is walked with x, or x itself. Unless both are aligned at the same element
  // there are no packets.
  Packets(const void* x, const void* other, int64_t elements, ElementType type)
      : count(elements), head(elements), packets(0), behind(elements) {
    const uintptr_t start = reinterpret_cast<uintptr_t>(x);
    const uintptr_t bytes = element_size(type);
    if ((start - reinterpret_cast<uintptr_t>(other)) % kPacketBytes != 0 || start % bytes != 0) return;
    const int64_t before = static_cast<int64_t>((kPacketBytes - start % kPacketBytes) % kPacketBytes / bytes);
    head = before < elements ? before : elements;
    const int64_t size = static_cast<int64_t>(kPacketBytes / bytes);
    packets = (elements - head) / size;
    behind = head + packets * size;
  }

  FQ_HD FQ_INLINE int64_t singles() const { return head + count - behind; }
};

// Packets that a thread has in flight.
constexpr int kInFlight = 2;

// Calls in_packet(packet, first element) for the packets and alone(element) for the single elements that the
// thread at `place` has to take.
template <ElementType T, typename InPacket, typename Alone>
FQ_HD FQ_INLINE void for_elements(const void* x, const Packets& range, const Place& place, const InPacket& in_packet,
                                  const Alone& alone) {
  const Packet<T>* packets =
      reinterpret_cast<const Packet<T>*>(static_cast<const typename Element<T>::Stored*>(x) + range.head);
  const int64_t step = place.all_threads() * kInFlight;
  for (int64_t first = place.block * place.threads * kInFlight + place.thread; first < range.packets; first += step) {
    Packet<T> loaded[kInFlight];
    FQ_UNROLL
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t p = first + i * place.threads;
      if (p < range.packets) loaded[i] = packets[p];
    }
    FQ_UNROLL
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t p = first + i * place.threads;
      if (p < range.packets) in_packet(loaded[i], range.head + p * Packet<T>::kSize);
    }
  }
  FQ_NO_UNROLL
  for (int64_t i = place.in_launch(); i < range.singles(); i += place.all_threads()) {
    alone(i < range.head ? i : range.behind + i - range.head);
  }
}

}  // namespace cuda
}  // namespace onnxfq
