#pragma once
// Decides which rows run in the next forward.
//
//   waiting (preempted samples, then new prompts) --admit--> running --finish--> done
//                    ^---------------- preempt the youngest ----'
//
// Samples have a fixed age: the order of (request, sample index). Every step gives one row to each running
// sample that decodes, oldest first, then up to `prefill_chunk` rows to prompts. When pages run out, the
// youngest running sample gives its own back and is computed again later. The oldest one can always take
// the pages of all others, so it always finishes: no deadlock as long as each sample fits alone.
//
// The samples of a prompt start as one sequence (the leader). Once the prompt is computed, its siblings hold
// the same pages; whoever first writes to a page that others hold gets a copy of its own.
//
// A batch may be made before the tokens of the one before are known (Sequence::pending): each sample that
// drew there runs on, unless that token is its last; where the token turns out to have stopped the sample,
// what the batch computes for it is not used, and finish() has given its pages back.
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/forward.hpp"
#include "rollout/engine.hpp"
#include "rollout/page_pool.hpp"
#include "rollout/stop_checker.hpp"

namespace accord::rollout {

struct Sequence {
  const Request* request = nullptr;
  int32_t leader = 0;          // index of the first sequence of its request
  bool started = false;        // has its prompt (a leader from admission, a sibling from fan-out)
  bool fanned_out = false;     // leaders only: the siblings have started
  int32_t computed = 0;        // positions whose keys and values are in the cache
  int32_t ever_computed = 0;   // the most `computed` has been, for the statistics
  std::vector<int32_t> pages;  // in order of position
  ExpertIds routing;           // [positions, routing_width] when recorded
  StopState stop;
  Sample sample;
  int32_t pending = 0;       // tokens that were drawn and are not in the sample yet
  int32_t pending_draw = 0;  // of the last of them: its place among the draws of the last batch
  bool finished = false;

  // With the pending ones.
  int32_t length() const { return static_cast<int32_t>(sample.tokens.size()) + pending; }
  // Whether the last token is one that ends it, whatever it is.
  bool is_full() const { return sample.response_length() + pending >= request->sampling.max_new_tokens; }
};

class Scheduler {
 public:
  struct Limits {
    int32_t max_batch_rows;
    int32_t prefill_chunk;
  };
  struct Scheduled {
    int32_t sequence;
    int32_t row_begin;
    int32_t num_rows;
    int32_t first_position;
  };
  // A token to draw for `sequence` from the logits of `row`, which gets `position` in the sample.
  struct Draw {
    int32_t sequence;
    int32_t row;
    int32_t position;
    bool fanned_out;  // a sibling's first token: its prompt was computed by the leader
  };
  using CopyRows = std::function<void(int32_t from, int32_t to, int32_t count)>;

  // `sequences` are grouped by request, in order of age; the vector must not move while the scheduler lives.
  // `num_samples` of a group is its request's. Each must fit the pool alone.
  Scheduler(std::span<Sequence> sequences, PagePool& pool, Limits limits, CopyRows copy_rows,
            EngineStats& stats);
  ~Scheduler();  // releases every page
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  bool done() const;
  // The next batch: never empty unless done, or while tokens are pending. Valid until the next call. Tokens
  // of at most one batch are pending then.
  model::Batch next_batch();
  // Per row, the draw of the batch before that is its token; -1: the batch has it.
  std::span<const int32_t> token_draws() const { return token_draws_; }
  std::span<const Scheduled> scheduled() const { return scheduled_; }
  // Call when the batch is on its way: accounts for its rows and returns the tokens to draw from it, which
  // are pending from now on. The caller hands each to take_token() once it is known, and calls finish() for
  // the samples that end.
  std::span<const Draw> complete_batch();
  void take_token(int32_t sequence, int32_t token);
  void finish(int32_t sequence);

 private:
  void admit();
  int32_t next_candidate() const;
  int64_t pages_to_start(const Sequence& seq) const;
  const Sequence* prefix_donor(const Sequence& seq) const;
  void start(int32_t index);
  void fan_out(int32_t leader, int32_t row);
  void add_draw(int32_t index, int32_t row, bool fanned_out);
  void schedule(int32_t index, int32_t num_rows);
  bool make_writable(int32_t index, int32_t num_rows);
  bool make_room(int32_t index);
  void preempt_youngest();
  void release_pages(Sequence& seq);
  Sequence& at(int32_t index) { return sequences_[static_cast<size_t>(index)]; }
  const Sequence& at(int32_t index) const { return sequences_[static_cast<size_t>(index)]; }

  std::span<Sequence> sequences_;
  PagePool& pool_;
  Limits limits_;
  CopyRows copy_rows_;
  EngineStats& stats_;
  std::vector<int32_t> running_;    // by age, oldest first
  std::vector<int32_t> preempted_;  // by age, youngest first; all younger than every running one
  int32_t next_new_ = 0;            // the next leader that never ran
  // The batch.
  std::vector<int32_t> tokens_, positions_, kv_rows_, token_draws_;
  std::vector<model::Segment> segments_;
  std::vector<Scheduled> scheduled_;
  std::vector<Draw> draws_;
};

}  // namespace accord::rollout
