#pragma once
// Ref-counted pages of the KV cache. A page is named by the cache row at which it starts, which is what
// model::Segment::pages holds.
#include <cstdint>
#include <vector>

namespace accord::rollout {

class PagePool {
 public:
  explicit PagePool(int32_t num_pages);

  int32_t allocate();          // a page with one reference, or -1 when none is free
  void add_ref(int32_t page);  // one more holder
  void release(int32_t page);  // one holder less; the last one frees the page
  bool shared(int32_t page) const;

  int32_t num_pages() const { return static_cast<int32_t>(refs_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t peak_used() const { return peak_used_; }
  void reset_peak();

 private:
  std::vector<int32_t> refs_;  // holders of each page
  std::vector<int32_t> free_;  // page numbers, the next one to hand out last
  int32_t peak_used_ = 0;
};

}  // namespace accord::rollout
