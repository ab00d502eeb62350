// Cuts a range of elements into tasks for the threads at hand.
#pragma once

#include <cstdint>
#include <exception>
#include <mutex>

#include "onnxfq/float_environment.h"
#include "onnxfq/kernels.h"

namespace onnxfq {
namespace cpu {

// Calls body(begin, end) for pieces of [0, count) that cover it. Pieces are multiples of `line`, apart from
// the last. A range of one piece does not touch the pool: tiny tensors stay cheap.
template <typename Body>
void for_pieces(const Threads& threads, int64_t count, int64_t smallest_piece, int64_t line, const Body& body) {
  constexpr int64_t kMostPieces = 256;
  int64_t piece = (count + kMostPieces - 1) / kMostPieces;
  piece = ((piece > smallest_piece ? piece : smallest_piece) + line - 1) / line * line;
  if (count <= piece) {
    if (count > 0) body(int64_t{0}, count);
    return;
  }
  struct Job {
    const Body* body;
    int64_t count;
    int64_t piece;
    std::mutex mutex;
    std::exception_ptr failure;  // out of memory, say: may not escape into the pool's thread
  } job{&body, count, piece, {}, nullptr};
  const auto task = [](void* data, size_t index) {
    Job& j = *static_cast<Job*>(data);
    const int64_t begin = static_cast<int64_t>(index) * j.piece;
    const int64_t end = begin + j.piece < j.count ? begin + j.piece : j.count;
    try {
      const StandardFloats floats;
      (*j.body)(begin, end);
    } catch (...) {
      std::lock_guard<std::mutex> lock(j.mutex);
      j.failure = std::current_exception();
    }
  };
  threads.run(threads.pool, task, static_cast<size_t>((count + piece - 1) / piece), &job);
  if (job.failure) std::rethrow_exception(job.failure);
}

}  // namespace cpu
}  // namespace onnxfq
