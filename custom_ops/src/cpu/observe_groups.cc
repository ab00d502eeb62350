// Observe by groups: the same statistics for every channel or block by itself.
//
// Groups that are neighbours along the innermost dimension lie side by side in memory, or, as channels of a layout
// with channels last, element by element between each other. Therefore kTile of them are read together, row by row,
// each into its own buffer, and a full buffer is counted as a whole tensor's block is. A tile belongs to one thread:
// nothing has to be merged, and threads cannot change a bit.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "elements.h"
#include "onnxfq/kernels.h"
#include "store.h"
#include "summarize.h"
#include "threads.h"

namespace onnxfq {
namespace cpu {
namespace {

constexpr int64_t kTile = 16;  // floats of a cache line
constexpr int64_t kSmallestPiece = 1 << 13;
// Bins whose being touched is noted together: a cache line of counters.
constexpr int kLine = 8;

// Counters of one group that know where they were touched: emptying them costs what was counted, not all bins.
struct SparseCounts {
  int64_t counts[kBinCount + kZeroSlots] = {};
  uint8_t touched[(kBinCount + kZeroSlots) / kLine] = {};

  void add(const uint16_t* bins, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      ++counts[bins[i]];
      touched[bins[i] / kLine] = 1;
    }
  }

  // Calls visit(bin, count) for every bin of finite values, ascending, and clears them all.
  template <typename Visit>
  void empty(int64_t zeros, const Visit& visit) {
    counts[0] += zeros;  // counted aside
    touched[0] = 1;
    constexpr int32_t kLines = kBinCount / kLine;
    for (int32_t word = 0; word < kLines; word += 8) {
      uint64_t any;
      std::memcpy(&any, touched + word, sizeof any);
      if (any == 0) continue;
      for (int32_t line = word; line < word + 8; ++line) {
        if (touched[line] == 0) continue;
        for (int32_t bin = line * kLine; bin < (line + 1) * kLine; ++bin) {
          if (counts[bin] != 0 && (bin & (kNegativeBin - 1)) < kNonFiniteBin) visit(bin, counts[bin]);
          counts[bin] = 0;
        }
      }
      std::memset(touched + word, 0, sizeof any);
    }
  }
};

// Buffers a power of two apart would share the sets of the L1 cache.
constexpr int64_t kBuffer = kBlock + 16;

// Buffers of a thread for a tile.
struct Workspace {
  float buffers[kTile][kBuffer];
  int64_t filled[kTile] = {};
  Summary summaries[kTile];
  SparseCounts counts[kTile];
};

Store<Workspace>& workspace_store() {
  static Store<Workspace> store;
  return store;
}

// Up to kTile groups that are neighbours along the innermost dimension: of one index along each outer dimension.
struct Tile {
  std::vector<int64_t> outer;  // index of the group along each outer dimension
  int64_t first;               // and along the innermost one
  int64_t count;
  int64_t group;  // number of the first one
};

class Tiles {
 public:
  // limit: groups from that number on are not observed.
  Tiles(const ParamLayout& layout, int64_t limit) : dims_(layout.dims()), limit_(limit) {
    along_ = (inner().params + kTile - 1) / kTile;
    count_ = along_;
    for (size_t d = 0; d + 1 < dims_.size(); ++d) count_ *= dims_[d].params;
  }

  int64_t count() const { return count_; }

  Tile operator[](int64_t number) const {
    Tile tile;
    tile.outer.resize(dims_.size() - 1);
    tile.first = number % along_ * kTile;
    tile.group = tile.first * inner().stride;
    number /= along_;
    for (size_t d = dims_.size() - 1; d-- > 0;) {
      tile.outer[d] = number % dims_[d].params;
      tile.group += tile.outer[d] * dims_[d].stride;
      number /= dims_[d].params;
    }
    tile.count = std::min({kTile, inner().params - tile.first, limit_ - tile.group});
    return tile;
  }

  // Calls visit(begin) for the index of the first element of every row of the tile.
  template <typename Visit>
  void for_rows(const Tile& tile, const Visit& visit) const {
    const size_t outer = dims_.size() - 1;
    std::vector<int64_t> first(outer), last(outer), at(outer), step(outer);
    int64_t size = inner().size;
    for (size_t d = outer; d-- > 0;) {
      first[d] = at[d] = tile.outer[d] * dims_[d].block;
      last[d] = std::min(dims_[d].size, first[d] + dims_[d].block);
      step[d] = size;
      size *= dims_[d].size;
    }
    for (;;) {
      int64_t begin = tile.first * inner().block;
      for (size_t d = 0; d < outer; ++d) begin += at[d] * step[d];
      visit(begin);
      size_t d = outer;
      while (d > 0 && ++at[d - 1] == last[d - 1]) {
        at[d - 1] = first[d - 1];
        --d;
      }
      if (d == 0) return;
    }
  }

  // Elements of the tile in one row.
  int64_t row_size(const Tile& tile) const {
    const int64_t begin = tile.first * inner().block;
    return std::min(inner().size, begin + tile.count * inner().block) - begin;
  }

  int64_t block() const { return inner().block; }

 private:
  const LayoutDim& inner() const { return dims_.back(); }

  const std::vector<LayoutDim>& dims_;
  int64_t limit_;
  int64_t along_;
  int64_t count_;
};

// Takes the elements of one tile's groups and counts them.
class TileObserver {
 public:
  TileObserver(Workspace& workspace, bool histogram) : work_(workspace), histogram_(histogram) {}

  // x[0, count): blocks of the tile's groups one behind the other, of which the first `done` elements are not here.
  void add(const float* x, int64_t count, int64_t block, int64_t done) {
    if (block == 1) {
      for (int64_t k = done; k < done + count; ++k) {
        if (work_.filled[k] == kBlock) flush(k);
        work_.buffers[k][work_.filled[k]++] = *x++;
      }
      return;
    }
    while (count > 0) {
      const int64_t part = std::min(count, block - done % block);
      append(done / block, x, part);
      x += part;
      count -= part;
      done += part;
    }
  }

  void finish(const Tile& tile, GroupStatistics* found) {
    for (int64_t k = 0; k < tile.count; ++k) {
      Summary& summary = work_.summaries[k];
      // Elements that fit into a buffer are counted here, all groups in the first counters, which stay in the cache.
      SparseCounts& counts = work_.counts[summary.elements > 0 ? k : 0];
      observe(k, work_.buffers[k], work_.filled[k], counts);
      work_.filled[k] = 0;
      if (histogram_ && summary.elements > 0) {
        const int32_t base = static_cast<int32_t>((tile.group + k) * kBinCount);
        counts.empty(summary.zeros, [&](int32_t bin, int64_t counted) {
          found->keys.push_back(base + bin);
          found->counts.push_back(counted);
        });
      }
      found->summaries.push_back(summary);
      summary = Summary();
    }
  }

 private:
  void append(int64_t k, const float* x, int64_t count) {
    while (count > 0) {
      if (work_.filled[k] == 0 && count >= kBlock) {
        observe(k, x, kBlock, work_.counts[k]);
        x += kBlock;
        count -= kBlock;
        continue;
      }
      if (work_.filled[k] == kBlock) flush(k);
      const int64_t part = std::min(count, kBlock - work_.filled[k]);
      std::memcpy(work_.buffers[k] + work_.filled[k], x, static_cast<size_t>(part) * sizeof(float));
      work_.filled[k] += part;
      x += part;
      count -= part;
    }
  }

  void flush(int64_t k) {
    observe(k, work_.buffers[k], work_.filled[k], work_.counts[k]);
    work_.filled[k] = 0;
  }

  void observe(int64_t k, const float* x, int64_t count, SparseCounts& counts) {
    uint16_t bins[kBlock];
    summarize_block(x, count, &work_.summaries[k], bins);
    if (histogram_) counts.add(bins, count);
  }

  Workspace& work_;
  bool histogram_;
};

}  // namespace

GroupStatistics observe_groups(const ObserveGroupsCall& call, const Threads& threads) {
  GroupStatistics result;
  result.summaries.reserve(static_cast<size_t>(call.groups));
  if (call.layout->element_count() == 0) {
    result.summaries.resize(static_cast<size_t>(call.groups));
    return result;
  }
  const Tiles tiles(*call.layout, call.groups);
  std::vector<GroupStatistics> parts(static_cast<size_t>(tiles.count()));
  const int64_t tile_size = std::max<int64_t>(call.layout->element_count() / tiles.count(), 1);
  for_pieces(threads, tiles.count(), (kSmallestPiece + tile_size - 1) / tile_size, 1, [&](int64_t begin, int64_t end) {
    std::unique_ptr<Workspace> workspace = workspace_store().take();
    TileObserver observer(*workspace, call.histogram);
    GroupStatistics& found = parts[static_cast<size_t>(begin)];
    for (int64_t number = begin; number < end; ++number) {
      const Tile tile = tiles[number];
      if (tile.count <= 0) continue;
      const int64_t size = tiles.row_size(tile);
      tiles.for_rows(tile, [&](int64_t row) {
        read_as_floats(call.type, call.x, row, row + size, [&](const float* x, int64_t from, int64_t to) {
          observer.add(x, to - from, tiles.block(), from - row);
        });
      });
      observer.finish(tile, &found);
    }
    workspace_store().give_back(std::move(workspace));
  });
  for (const GroupStatistics& part : parts) {
    result.summaries.insert(result.summaries.end(), part.summaries.begin(), part.summaries.end());
    result.keys.insert(result.keys.end(), part.keys.begin(), part.keys.end());
    result.counts.insert(result.counts.end(), part.counts.begin(), part.counts.end());
  }
  return result;
}

}  // namespace cpu
}  // namespace onnxfq
