// The rules of float arithmetic that a thread has, and that a kernel replaces while it runs.
#pragma once

#if defined(__SSE__) || defined(_M_X64)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace onnxfq {

// Standard arithmetic for as long as it lives: rounding to nearest, subnormal numbers. A process may have switched the
// latter off for all its arithmetic, as torch.set_flush_denormal does, and any library that was linked with
// -ffast-math while it is loaded.
class StandardFloats {
 public:
  StandardFloats(const StandardFloats&) = delete;
  StandardFloats& operator=(const StandardFloats&) = delete;

#if defined(__SSE__) || defined(_M_X64)
  // 11 ns for both, where fesetenv takes 230.
  StandardFloats() : saved_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~StandardFloats() { _mm_setcsr(saved_); }

 private:
  static constexpr unsigned kDefault = 0x1f80;  // all exceptions masked, nothing else
  unsigned saved_;
#else
  StandardFloats() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~StandardFloats() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif
};

}  // namespace onnxfq
