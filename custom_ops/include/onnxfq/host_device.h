// The only place that asks which compiler this is.
#pragma once

// FQ_HD: the function is compiled for the host and, under nvcc, for the device too.
#if defined(__CUDACC__)
#define FQ_HD __host__ __device__
#else
#define FQ_HD
#endif

// FQ_DEVICE_CODE: 0 in code for the host; in code for a GPU its architecture, 800 for sm_80.
#if defined(__CUDA_ARCH__)
#define FQ_DEVICE_CODE __CUDA_ARCH__
#else
#define FQ_DEVICE_CODE 0
#endif

// FQ_UNROLL: the next loop, of known length, becomes straight code on a GPU, its arrays registers.
// FQ_NO_UNROLL: it stays a loop there, because it is rarely run.
#if FQ_DEVICE_CODE
#define FQ_UNROLL _Pragma("unroll")
#define FQ_NO_UNROLL _Pragma("unroll 1")
#else
#define FQ_UNROLL
#define FQ_NO_UNROLL
#endif

// FQ_INLINE: must disappear into its caller, because only the caller is compiled once per
// instruction set (FQ_CLONES) and a function called from there would be compiled for the oldest.
#if defined(_MSC_VER)
#define FQ_INLINE __forceinline
#else
#define FQ_INLINE inline __attribute__((always_inline))
#endif

// FQ_CLONES: one copy of the function for AVX-512, one for AVX2, one for every x86-64; the loader
// picks. GCC and glibc only; elsewhere the function is compiled once, for the target given.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && defined(__x86_64__) && \
    defined(__GLIBC__) && !defined(FQ_ONE_CLONE)
#define FQ_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FQ_CLONES
#endif

// FQ_IVDEP: iterations of the next loop do not feed each other, although input and output may be the
// same array. Without it the compiler's overlap test sends in-place calls to scalar code.
#if defined(__clang__)
#define FQ_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define FQ_IVDEP _Pragma("GCC ivdep")
#elif defined(_MSC_VER)
#define FQ_IVDEP __pragma(loop(ivdep))
#else
#define FQ_IVDEP
#endif

// FQ_GROUP: the same for an inner loop of known length, which must become one vector operation and not be
// unrolled into single elements first: those GCC joins again only behind an overlap test.
#if defined(__GNUC__) && !defined(__clang__)
#define FQ_GROUP _Pragma("GCC ivdep") _Pragma("GCC unroll 1")
#else
#define FQ_GROUP FQ_IVDEP
#endif

// FQ_PREFETCH: the cache line at this address will be read soon. A hint, never a fault.
#if defined(__GNUC__)
#define FQ_PREFETCH(address) __builtin_prefetch(address)
#else
#define FQ_PREFETCH(address) ((void)(address))
#endif

// FQ_HIGH_PRODUCT: the upper 64 bits of the product of two uint64.
#if FQ_DEVICE_CODE
#define FQ_HIGH_PRODUCT(a, b) __umul64hi(a, b)
#elif defined(_MSC_VER)
#include <intrin.h>
#define FQ_HIGH_PRODUCT(a, b) __umulh(a, b)
#else
__extension__ typedef unsigned __int128 fq_uint128;
#define FQ_HIGH_PRODUCT(a, b) static_cast<uint64_t>((static_cast<fq_uint128>(a) * (b)) >> 64)
#endif

// FQ_READ_ONLY: what lies at an address that nobody writes to while the kernel runs, so that a GPU may load it before
// earlier stores.
#if FQ_DEVICE_CODE
#define FQ_READ_ONLY(address) __ldg(address)
#else
#define FQ_READ_ONLY(address) (*(address))
#endif

// FQ_RECIPROCAL: 1 / x, rounded as a division is, in fewer instructions than one.
#if FQ_DEVICE_CODE
#define FQ_RECIPROCAL(x) __frcp_rn(x)
#else
#define FQ_RECIPROCAL(x) (1.0f / (x))
#endif

// FQ_EXPORT: visible outside the library.
#if defined(_WIN32)
#define FQ_EXPORT extern "C" __declspec(dllexport)
#else
#define FQ_EXPORT extern "C" __attribute__((visibility("default")))
#endif
