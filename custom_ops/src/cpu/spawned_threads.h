// Threads of the library's own, for callers that bring none: started for one call, gone after it.
//
// No pool: a process that forks while a pool sleeps would have one without threads.
#pragma once

#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#include "onnxfq/kernels.h"

namespace onnxfq {
namespace cpu {

// At most `most` threads, the caller's among them; fewer where the system gives no more.
struct SpawnedThreads {
  int32_t most;

  Threads threads() {
    return {[](void* pool, void (*task)(void*, size_t), size_t count, void* data) {
              std::atomic<size_t> next{0};
              const auto work = [&] {
                for (size_t i = next++; i < count; i = next++) task(data, i);
              };
              const size_t wanted = static_cast<size_t>(static_cast<SpawnedThreads*>(pool)->most);
              std::vector<std::thread> others;
              others.reserve(wanted);
              try {
                while (others.size() + 1 < wanted && others.size() + 1 < count) others.emplace_back(work);
              } catch (const std::system_error&) {
                // No more threads to be had: those that run, and the caller, do all the tasks.
              }
              work();
              for (std::thread& other : others) other.join();
            },
            this};
  }
};

}  // namespace cpu
}  // namespace onnxfq
