// Workspaces kept from call to call.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace onnxfq {
namespace cpu {

// Workspaces that are not in use. Whoever gives one back leaves it as a new one is, so that nobody pays for
// clearing it.
template <typename T>
class Store {
 public:
  std::unique_ptr<T> take() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!free_.empty()) {
        std::unique_ptr<T> kept = std::move(free_.back());
        free_.pop_back();
        return kept;
      }
    }
    return std::make_unique<T>();
  }

  void give_back(std::unique_ptr<T> used) {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(used));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> free_;
};

}  // namespace cpu
}  // namespace onnxfq
