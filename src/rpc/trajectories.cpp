#include "rpc/trajectories.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "rpc/convert.hpp"

namespace accord::rpc {
namespace {

// Upper bounds of what is written: a varint of a token id, a float, a byte; key, lengths and tags of a piece.
constexpr size_t kTokenBytes = 5;
constexpr size_t kFloatBytes = sizeof(float);
constexpr size_t kPieceBytes = 128;

// What one list of a sample still has to send.
template <class T>
class Cut {
 public:
  Cut(const std::vector<T>& values, size_t bytes_each) : values_(values), bytes_each_(bytes_each) {}

  // Hands the next elements that fit in `room` to `take(begin, end)`.
  template <class Take>
  void next(size_t& room, const Take& take) {
    const size_t count = std::min(values_.size() - done_, room / bytes_each_);
    const auto begin = values_.begin() + static_cast<std::ptrdiff_t>(done_);
    take(begin, begin + static_cast<std::ptrdiff_t>(count));
    done_ += count;
    room -= count * bytes_each_;
  }
  bool left() const { return done_ < values_.size(); }

 private:
  const std::vector<T>& values_;
  const size_t bytes_each_;
  size_t done_ = 0;
};

template <class T, class Values>
void append(std::vector<T>& to, const Values& values) {
  to.insert(to.end(), values.begin(), values.end());
}

}  // namespace

TrajectoryWriter::TrajectoryWriter(Send send, size_t chunk_bytes)
    : send_(std::move(send)), chunk_bytes_(std::max(chunk_bytes, 2 * kPieceBytes)) {}

bool TrajectoryWriter::flush() {
  const bool sent = send_(chunk_);
  chunk_.Clear();
  used_ = 0;
  return sent;
}

bool TrajectoryWriter::finish() { return chunk_.trajectories_size() == 0 || flush(); }

bool TrajectoryWriter::add(const Sample& sample) {
  Cut tokens(sample.tokens, kTokenBytes);
  Cut logprobs(sample.logprobs, kFloatBytes);
  Cut sampling(sample.sampling_logprobs, kFloatBytes);
  Cut routing(sample.routing.bytes, 1);
  bool left = true;
  while (left) {
    if (used_ + 2 * kPieceBytes > chunk_bytes_ && !flush()) {
      return false;
    }
    v1::Trajectory& piece = *chunk_.add_trajectories();
    *piece.mutable_key() = to_proto(sample.key);
    piece.set_weight_version(sample.weight_version);
    piece.set_prompt_length(sample.prompt_length);
    piece.set_truncated(sample.finish == FinishReason::kLength);
    size_t room = chunk_bytes_ - used_ - kPieceBytes;
    const auto add_to = [](auto* list) { return [list](auto begin, auto end) { list->Add(begin, end); }; };
    tokens.next(room, add_to(piece.mutable_tokens()));
    logprobs.next(room, add_to(piece.mutable_logprobs()));
    sampling.next(room, add_to(piece.mutable_sampling_logprobs()));
    routing.next(room, [&](auto begin, auto end) { piece.mutable_routing()->assign(begin, end); });
    left = tokens.left() || logprobs.left() || sampling.left() || routing.left();
    piece.set_continues(left);
    used_ = chunk_bytes_ - room;
  }
  return true;
}

Status TrajectoryReader::add(const v1::TrajectoryChunk& chunk) {
  for (const v1::Trajectory& piece : chunk.trajectories()) {
    const SampleKey key = from_proto(piece.key());
    if (!open_) {
      samples_.emplace_back().key = key;
    } else if (samples_.back().key != key) {
      return internal_error("a piece of sample {} of prompt {} came where sample {} of prompt {} continues",
                            key.sample_index, key.prompt_id, samples_.back().key.sample_index,
                            samples_.back().key.prompt_id);
    }
    Sample& sample = samples_.back();
    sample.weight_version = piece.weight_version();
    sample.prompt_length = piece.prompt_length();
    sample.finish = piece.truncated() ? FinishReason::kLength : FinishReason::kStop;
    append(sample.tokens, piece.tokens());
    append(sample.logprobs, piece.logprobs());
    append(sample.sampling_logprobs, piece.sampling_logprobs());
    append(sample.routing.bytes, piece.routing());
    open_ = piece.continues();
  }
  return absl::OkStatus();
}

StatusOr<std::vector<Sample>> TrajectoryReader::finish() {
  if (open_) {
    return internal_error("sample {} of prompt {} is not whole", samples_.back().key.sample_index,
                          samples_.back().key.prompt_id);
  }
  return std::move(samples_);
}

}  // namespace accord::rpc
