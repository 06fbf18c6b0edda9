#include "rollout/page_pool.hpp"

#include <algorithm>
#include <cassert>

#include "model/forward.hpp"

namespace accord::rollout {

using model::kPageSize;

PagePool::PagePool(int32_t num_pages) : refs_(static_cast<size_t>(num_pages), 0) {
  free_.reserve(refs_.size());
  for (int32_t page = num_pages - 1; page >= 0; --page) {
    free_.push_back(page);
  }
}

int32_t PagePool::allocate() {
  if (free_.empty()) {
    return -1;
  }
  const int32_t page = free_.back();
  free_.pop_back();
  refs_[static_cast<size_t>(page)] = 1;
  peak_used_ = std::max(peak_used_, num_pages() - num_free());
  return page * kPageSize;
}

void PagePool::add_ref(int32_t page) {
  int32_t& refs = refs_[static_cast<size_t>(page / kPageSize)];
  assert(refs > 0);
  ++refs;
}

void PagePool::release(int32_t page) {
  int32_t& refs = refs_[static_cast<size_t>(page / kPageSize)];
  assert(refs > 0);
  if (--refs == 0) {
    free_.push_back(page / kPageSize);
  }
}

bool PagePool::shared(int32_t page) const { return refs_[static_cast<size_t>(page / kPageSize)] > 1; }

void PagePool::reset_peak() { peak_used_ = num_pages() - num_free(); }

}  // namespace accord::rollout
