#include "rollout/scheduler.hpp"

#include <algorithm>
#include <cassert>
#include <utility>

namespace accord::rollout {

using model::kPageSize;

namespace {

int32_t pages_for(int32_t rows) { return (rows + kPageSize - 1) / kPageSize; }

}  // namespace

Scheduler::Scheduler(std::span<Sequence> sequences, PagePool& pool, Limits limits, CopyRows copy_rows,
                     EngineStats& stats)
    : sequences_(sequences), pool_(pool), limits_(limits), copy_rows_(std::move(copy_rows)), stats_(stats) {
  const auto rows = static_cast<size_t>(limits.max_batch_rows);
  tokens_.reserve(rows);
  positions_.reserve(rows);
  kv_rows_.reserve(rows);
  token_draws_.reserve(rows);
  segments_.reserve(rows);
  scheduled_.reserve(rows);
  draws_.reserve(rows);
  running_.reserve(sequences.size());
  preempted_.reserve(sequences.size());
}

Scheduler::~Scheduler() {
  for (Sequence& seq : sequences_) {
    release_pages(seq);
  }
}

bool Scheduler::done() const {
  return running_.empty() && preempted_.empty() && next_new_ == static_cast<int32_t>(sequences_.size());
}

model::Batch Scheduler::next_batch() {
  tokens_.clear();
  positions_.clear();
  kv_rows_.clear();
  token_draws_.clear();
  segments_.clear();
  scheduled_.clear();
  draws_.clear();
  admit();

  // Decode. Preemption only removes the back of running_, so those scheduled already stay.
  const auto room = [&] { return limits_.max_batch_rows - static_cast<int32_t>(tokens_.size()); };
  for (size_t i = 0; i < running_.size() && room() > 0; ++i) {
    const int32_t index = running_[i];
    const Sequence& seq = at(index);
    if (seq.length() - seq.computed == 1 && !seq.is_full() && make_writable(index, 1)) {
      schedule(index, 1);
    }
  }
  int32_t prefill_room = std::min(limits_.prefill_chunk, room());
  for (size_t i = 0; i < running_.size() && prefill_room > 0; ++i) {
    const int32_t index = running_[i];
    const int32_t remaining = at(index).length() - at(index).computed;
    const int32_t num_rows = std::min(remaining, prefill_room);
    if (remaining > 1 && make_writable(index, num_rows)) {
      schedule(index, num_rows);
      prefill_room -= num_rows;
    }
  }
  return {.tokens = tokens_, .positions = positions_, .kv_rows = kv_rows_, .segments = segments_};
}

std::span<const Scheduler::Draw> Scheduler::complete_batch() {
  for (const Scheduled& item : scheduled_) {
    Sequence& seq = at(item.sequence);
    const int32_t end = seq.computed + item.num_rows;
    const int32_t fresh_begin = std::clamp(seq.ever_computed, seq.computed, end);
    stats_.recomputed_rows += static_cast<uint64_t>(fresh_begin - seq.computed);
    const int32_t fresh_prompt = std::min(end, seq.sample.prompt_length) - fresh_begin;
    stats_.prefill_rows += static_cast<uint64_t>(std::max(fresh_prompt, 0));
    seq.computed = end;
    seq.ever_computed = std::max(seq.ever_computed, end);
    if (seq.computed < seq.length()) {
      continue;
    }
    const int32_t row = item.row_begin + item.num_rows - 1;
    add_draw(item.sequence, row, /*fanned_out=*/false);
    if (item.sequence == seq.leader && !seq.fanned_out) {
      fan_out(item.sequence, row);
    }
  }
  ++stats_.forwards;
  return draws_;
}

void Scheduler::add_draw(int32_t index, int32_t row, bool fanned_out) {
  Sequence& seq = at(index);
  seq.pending_draw = static_cast<int32_t>(draws_.size());
  draws_.push_back({index, row, seq.length(), fanned_out});
  ++seq.pending;
}

void Scheduler::take_token(int32_t sequence, int32_t token) {
  Sequence& seq = at(sequence);
  seq.sample.tokens.push_back(token);
  --seq.pending;
}

void Scheduler::finish(int32_t sequence) {
  Sequence& seq = at(sequence);
  seq.finished = true;
  release_pages(seq);
  const auto running = std::lower_bound(running_.begin(), running_.end(), sequence);
  if (running != running_.end() && *running == sequence) {
    running_.erase(running);
  } else {  // preempted since it drew its last token
    preempted_.erase(std::find(preempted_.begin(), preempted_.end(), sequence));
  }
}

// ---- admission ---------------------------------------------------------------------------------

int32_t Scheduler::next_candidate() const {
  if (!preempted_.empty()) {
    return preempted_.back();
  }
  return next_new_ < static_cast<int32_t>(sequences_.size()) ? next_new_ : -1;
}

void Scheduler::admit() {
  // Pages that the running ones still need to reach a sampled token, and one more each as a margin.
  int64_t promised = 0;
  for (int32_t index : running_) {
    const Sequence& seq = at(index);
    promised += pages_for(seq.length()) - static_cast<int64_t>(seq.pages.size()) + 1;
  }
  for (int32_t index = next_candidate(); index >= 0; index = next_candidate()) {
    const int64_t needed = pages_to_start(at(index));
    const bool fits = static_cast<int32_t>(running_.size()) < limits_.max_batch_rows &&
                      promised + needed <= pool_.num_free();
    if (!fits && !running_.empty()) {
      return;
    }
    start(index);
    promised += needed;
  }
}

int64_t Scheduler::pages_to_start(const Sequence& seq) const {
  if (&seq == &at(seq.leader) && !seq.fanned_out) {
    return pages_for(static_cast<int32_t>(seq.request->prompt.tokens.size())) + seq.request->num_samples;
  }
  const int32_t shared = prefix_donor(seq) != nullptr ? seq.sample.prompt_length / kPageSize : 0;
  return pages_for(seq.length()) - shared + 1;
}

// A running sample of the same prompt whose whole prompt is computed.
const Sequence* Scheduler::prefix_donor(const Sequence& seq) const {
  if (!at(seq.leader).fanned_out) {
    return nullptr;
  }
  const int32_t end = seq.leader + seq.request->num_samples;
  for (auto it = std::lower_bound(running_.begin(), running_.end(), seq.leader);
       it != running_.end() && *it < end; ++it) {
    if (at(*it).computed >= at(*it).sample.prompt_length) {
      return &at(*it);
    }
  }
  return nullptr;
}

void Scheduler::start(int32_t index) {
  Sequence& seq = at(index);
  if (seq.started) {  // preempted before
    assert(preempted_.back() == index && seq.pending == 0);
    preempted_.pop_back();
    if (const Sequence* donor = prefix_donor(seq)) {
      const int32_t shared = seq.sample.prompt_length / kPageSize;
      for (int32_t p = 0; p < shared; ++p) {
        seq.pages.push_back(donor->pages[static_cast<size_t>(p)]);
        pool_.add_ref(seq.pages.back());
      }
      seq.computed = shared * kPageSize;
      stats_.shared_rows += static_cast<uint64_t>(seq.computed);
    }
  } else {
    seq.started = true;
    seq.sample.tokens = seq.request->prompt.tokens;
    next_new_ += seq.request->num_samples;
  }
  running_.insert(std::lower_bound(running_.begin(), running_.end(), index), index);
}

void Scheduler::fan_out(int32_t leader, int32_t row) {
  const Sequence& first = at(leader);
  at(leader).fanned_out = true;
  for (int32_t index = leader + 1; index < leader + first.request->num_samples; ++index) {
    Sequence& seq = at(index);
    seq.started = true;
    seq.sample.tokens = first.sample.tokens;
    seq.pages = first.pages;
    for (int32_t page : seq.pages) {
      pool_.add_ref(page);
    }
    seq.computed = first.computed;
    seq.ever_computed = first.computed;
    stats_.shared_rows += static_cast<uint64_t>(seq.computed);
    running_.insert(std::lower_bound(running_.begin(), running_.end(), index), index);
    add_draw(index, row, /*fanned_out=*/true);
  }
}

// ---- pages -------------------------------------------------------------------------------------

void Scheduler::schedule(int32_t index, int32_t num_rows) {
  const Sequence& seq = at(index);
  const auto row_begin = static_cast<int32_t>(tokens_.size());
  for (int32_t position = seq.computed; position < seq.computed + num_rows; ++position) {
    const bool known = position < static_cast<int32_t>(seq.sample.tokens.size());
    tokens_.push_back(known ? seq.sample.tokens[static_cast<size_t>(position)] : 0);
    token_draws_.push_back(known ? -1 : seq.pending_draw);
    positions_.push_back(position);
    kv_rows_.push_back(seq.pages[static_cast<size_t>(position / kPageSize)] + position % kPageSize);
  }
  segments_.push_back({.row_begin = row_begin,
                       .num_rows = num_rows,
                       .first_position = seq.computed,
                       .pages = seq.pages.data()});
  scheduled_.push_back({index, row_begin, num_rows, seq.computed});
}

// Pages of its own for the next `num_rows` positions. False: not now (it may have been preempted itself).
bool Scheduler::make_writable(int32_t index, int32_t num_rows) {
  Sequence& seq = at(index);
  const int32_t end = pages_for(seq.computed + num_rows);
  for (int32_t p = seq.computed / kPageSize; p < end; ++p) {
    const auto slot = static_cast<size_t>(p);
    // Preempting a sibling may leave its page to this one alone, so both conditions are asked again.
    while (slot >= seq.pages.size() || pool_.shared(seq.pages[slot])) {
      const int32_t page = pool_.allocate();
      if (page < 0) {
        if (!make_room(index)) {
          return false;
        }
      } else if (slot >= seq.pages.size()) {
        seq.pages.push_back(page);
      } else {
        copy_rows_(seq.pages[slot], page, seq.computed % kPageSize);
        pool_.release(seq.pages[slot]);
        seq.pages[slot] = page;
      }
    }
  }
  return true;
}

// Preempts the youngest. False when that one runs in this batch already, or is `index` itself (which then
// waits for its turn again).
bool Scheduler::make_room(int32_t index) {
  const int32_t youngest = running_.back();
  if (std::any_of(scheduled_.begin(), scheduled_.end(),
                  [&](const Scheduled& item) { return item.sequence == youngest; })) {
    return false;
  }
  preempt_youngest();
  return youngest != index;
}

void Scheduler::preempt_youngest() {
  const int32_t index = running_.back();
  running_.pop_back();
  release_pages(at(index));
  at(index).computed = 0;
  preempted_.push_back(index);
  ++stats_.preemptions;
}

void Scheduler::release_pages(Sequence& seq) {
  for (int32_t page : seq.pages) {
    pool_.release(page);
  }
  seq.pages.clear();
}

}  // namespace accord::rollout
