// Additions, minima and maxima that many threads make at the same place. On the host, where tests run one thread
// after the other, plain ones.
#pragma once

#include <cstdint>

#include "onnxfq/host_device.h"

namespace onnxfq {
namespace cuda {

FQ_HD FQ_INLINE void atomic_add(uint32_t* at, uint32_t value) {
#if FQ_DEVICE_CODE
  atomicAdd(at, value);
#else
  *at += value;
#endif
}

FQ_HD FQ_INLINE void atomic_add(int64_t* at, int64_t value) {
#if FQ_DEVICE_CODE
  // Two's complement: the sum of the bits is the sum.
  atomicAdd(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
#else
  *at += value;
#endif
}

template <typename T>
FQ_HD FQ_INLINE void atomic_min(T* at, T value) {
#if FQ_DEVICE_CODE
  atomicMin(at, value);
#else
  *at = value < *at ? value : *at;
#endif
}

template <typename T>
FQ_HD FQ_INLINE void atomic_max(T* at, T value) {
#if FQ_DEVICE_CODE
  atomicMax(at, value);
#else
  *at = value > *at ? value : *at;
#endif
}

FQ_HD FQ_INLINE void atomic_min(int64_t* at, int64_t value) {
#if FQ_DEVICE_CODE
  atomicMin(reinterpret_cast<long long*>(at), static_cast<long long>(value));
#else
  *at = value < *at ? value : *at;
#endif
}

FQ_HD FQ_INLINE void atomic_max(int64_t* at, int64_t value) {
#if FQ_DEVICE_CODE
  atomicMax(reinterpret_cast<long long*>(at), static_cast<long long>(value));
#else
  *at = value > *at ? value : *at;
#endif
}

// Counters in a block's shared memory. Their address is found out once, not at each addition.
class SharedCounters {
 public:
  FQ_HD FQ_INLINE explicit SharedCounters(uint32_t* counters)
#if FQ_DEVICE_CODE
  {
    // Hidden from the compiler, which would compute the address again at each addition.
    asm volatile("mov.u32 %0, %1;" : "=r"(address_) : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(counters))));
  }
#else
      : counters_(counters) {
  }
#endif

  FQ_HD FQ_INLINE void add(uint32_t at, uint32_t value) const {
#if FQ_DEVICE_CODE
    asm volatile("red.shared.add.u32 [%0], %1;" ::"r"(address_ + at * 4), "r"(value) : "memory");
#else
    counters_[at] += value;
#endif
  }

  // Adds 1, by the instruction that counts the threads of a warp which have the same address.
  FQ_HD FQ_INLINE void add_one(uint32_t at) const {
#if FQ_DEVICE_CODE
    asm volatile("red.shared.add.u32 [%0], 1;" ::"r"(address_ + at * 4) : "memory");
#else
    ++counters_[at];
#endif
  }

 private:
#if FQ_DEVICE_CODE
  uint32_t address_;
#else
  uint32_t* counters_;
#endif
};

// One thread of a warp goes on with what all of them have; on the host each is a separate warp. Every thread of
// the warp calls it.
template <typename T, typename Combine>
FQ_HD FQ_INLINE T over_warp(T value, const Combine& combine) {
#if FQ_DEVICE_CODE
  FQ_UNROLL
  for (int distance = 16; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
#else
  (void)combine;
#endif
  return value;
}

// Whether all threads of the warp have the same value. Every thread of the warp calls it.
FQ_HD FQ_INLINE bool same_over_warp(int64_t value) {
#if FQ_DEVICE_CODE
  return __all_sync(0xffffffffu, value == __shfl_sync(0xffffffffu, value, 0));
#else
  (void)value;
  return true;
#endif
}

FQ_HD FQ_INLINE bool first_of_warp(int thread) {
#if FQ_DEVICE_CODE
  return thread % 32 == 0;
#else
  (void)thread;
  return true;
#endif
}

}  // namespace cuda
}  // namespace onnxfq
