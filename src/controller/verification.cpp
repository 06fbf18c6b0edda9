#include "controller/verification.hpp"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "base/mapped_memory.hpp"
#include "checkpoint/hf_checkpoint.hpp"
#include "controller/verification_metadata.hpp"
#include "controller/weight_tiles.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "telemetry/progress.hpp"

namespace accord::controller {
namespace {

using checkpoint::Encoding;
using checkpoint::HfCheckpoint;
using checkpoint::StoredWeight;

constexpr size_t kPart = size_t{1} << 20;
constexpr int64_t kReleaseElements = int64_t{1} << 25;

int thread_count(int asked) {
  return asked > 0 ? asked : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

// What a plan's row would say of a weight that is stored like this.
precision::PlanRow row_of(const ParamSpec& spec, const StoredWeight& weight,
                          const checkpoint::Nvfp4Notes& notes) {
  precision::PlanRow row;
  row.name = spec.name;
  row.shape = spec.shape;
  row.format = weight.encoding == Encoding::kMxfp8 ? WeightFormat::kMXFP8 : WeightFormat::kNVFP4;
  row.layout = notes.layout == "16x16" ? recipe::ScaleLayout::k16x16 : recipe::ScaleLayout::k1x16;
  if (notes.four_over_six != "none") {
    row.four_over_six = recipe::FourOverSix::kWeights;
    row.four_over_six_error =
        notes.four_over_six == "mse" ? recipe::FourOverSixError::kMse : recipe::FourOverSixError::kMae;
  }
  row.four_over_six_range = notes.range;
  return row;
}

class Verifier {
 public:
  Verifier(const HfCheckpoint& a, const HfCheckpoint& b, int threads)
      : a_(a), b_(b), pool_(threads), a_tiles_(a, pool_), b_tiles_(b, pool_) {}

  StatusOr<Verification> run() {
    ACCORD_RETURN_IF_ERROR(same_parameters());
    telemetry::ProgressBar progress("verify", static_cast<int64_t>(a_.specs().size()));
    Verification result;
    ACCORD_ASSIGN_OR_RETURN(result.others, compare_metadata(a_, b_));
    for (const ParamSpec& spec : a_.specs()) {
      const StoredWeight& x = *a_.stored(spec.name);
      const StoredWeight& y = *b_.stored(spec.name);
      VerifiedTensor tensor{spec.name, std::string(name_of(x.encoding)), std::string(name_of(y.encoding)),
                            Relation::kDifferent, ""};
      ACCORD_RETURN_IF_ERROR(compare(spec, x, y, tensor));
      result.tensors.push_back(std::move(tensor));
      progress.advance();
      release_after(spec.numel());
    }
    return result;
  }

 private:
  Status same_parameters() const {
    const std::vector<ParamSpec>& x = a_.specs();
    const std::vector<ParamSpec>& y = b_.specs();
    for (size_t i = 0; i < std::max(x.size(), y.size()); ++i) {
      if (i >= x.size() || i >= y.size() || x[i].name != y[i].name || x[i].shape != y[i].shape) {
        const auto text = [i](const std::vector<ParamSpec>& specs) {
          return i < specs.size()
                     ? fmt::format("{} {}", specs[i].name, checkpoint::shape_text(specs[i].shape))
                     : std::string("no more parameters");
        };
        return data_error("{} and {} are different models: {} against {}", a_.dir(), b_.dir(), text(x),
                          text(y));
      }
    }
    return absl::OkStatus();
  }

  Status compare(const ParamSpec& spec, const StoredWeight& x, const StoredWeight& y, VerifiedTensor& out) {
    if (x.encoding == y.encoding && x.encoding != Encoding::kPlain) {
      compare_stored(x, y, out);
      return absl::OkStatus();
    }
    if (x.encoding == Encoding::kPlain && y.encoding == Encoding::kPlain) {
      return compare_values(spec, out);
    }
    if (x.encoding == Encoding::kPlain) {
      return compare_with_quantized(spec, a_, b_, out);
    }
    if (y.encoding == Encoding::kPlain) {
      return compare_with_quantized(spec, b_, a_, out);
    }
    return compare_quantized(spec, x, y, out);
  }

  // Two quantized formats: one may be what the decoded values of the other become.
  Status compare_quantized(const ParamSpec& spec, const StoredWeight& x, const StoredWeight& y,
                           VerifiedTensor& out) {
    out.detail = "two quantized formats, neither made of the other";
    for (const auto& [from, to, stored] : {std::tuple{&a_, &b_, &y}, {&b_, &a_, &x}}) {
      if (stored->encoding == Encoding::kFp8Block) {
        continue;  // a source only
      }
      ACCORD_ASSIGN_OR_RETURN(const std::string difference,
                              requantized_difference(spec, *from, *to, *stored));
      if (difference.empty()) {
        out.relation = Relation::kQuantized;
        out.detail.clear();
        break;
      }
    }
    return absl::OkStatus();
  }

  void release_after(int64_t elements) {
    read_ += elements;
    if (read_ >= kReleaseElements) {
      a_.release_all();
      b_.release_all();
      read_ = 0;
    }
  }

  static std::string first_difference(const checkpoint::TensorInfo& x, const checkpoint::TensorInfo& y) {
    if (x.bytes != y.bytes) {
      return fmt::format("{} is {} against {}", x.name, checkpoint::shape_text(x.shape),
                         checkpoint::shape_text(y.shape));
    }
    for (int64_t at = 0; at < x.bytes;) {
      const auto size = std::min<int64_t>(static_cast<int64_t>(kPart), x.bytes - at);
      if (std::memcmp(x.data + at, y.data + at, static_cast<size_t>(size)) != 0) {
        const auto [left, right] = std::mismatch(x.data + at, x.data + at + size, y.data + at);
        return fmt::format("{}: byte {} is {:#04x} against {:#04x}", x.name, left - x.data,
                           std::to_integer<int>(*left), std::to_integer<int>(*right));
      }
      release_mapped(x.data + at, static_cast<size_t>(size));
      release_mapped(y.data + at, static_cast<size_t>(size));
      at += size;
    }
    return "";
  }

  static void compare_stored(const StoredWeight& x, const StoredWeight& y, VerifiedTensor& out) {
    out.detail = first_difference(*x.data, *y.data);
    if (out.detail.empty()) {
      out.detail = first_difference(*x.scales, *y.scales);
    }
    if (out.detail.empty() &&
        (std::bit_cast<uint32_t>(x.outer) != std::bit_cast<uint32_t>(y.outer) || x.range != y.range)) {
      out.detail =
          fmt::format("outer scale {} (range {}) against {} (range {})", x.outer, x.range, y.outer, y.range);
    }
    if (out.detail.empty()) {
      out.relation = Relation::kEqual;
    }
  }

  // The values of two checkpoints as bits: in fp32; in BF16 where one of the two keeps that and has to.
  Status compare_values(const ParamSpec& spec, VerifiedTensor& out) {
    ACCORD_ASSIGN_OR_RETURN(const Dtype a_dtype, a_.dtype(spec.name));
    ACCORD_ASSIGN_OR_RETURN(const Dtype b_dtype, b_.dtype(spec.name));
    const bool rounds = a_dtype != b_dtype && (a_dtype == Dtype::kBF16 || b_dtype == Dtype::kBF16) &&
                        checkpoint::plain_dtype(spec) == Dtype::kBF16;
    bool rounded = false;
    std::vector<float> x(kPart / sizeof(float));
    std::vector<float> y(x.size());
    for (int64_t at = 0; at < spec.numel();) {
      const auto count =
          static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(x.size()), spec.numel() - at));
      const auto left = std::span(x).first(count);
      const auto right = std::span(y).first(count);
      ACCORD_RETURN_IF_ERROR(a_.read_f32(spec.name, at, left));
      ACCORD_RETURN_IF_ERROR(b_.read_f32(spec.name, at, right));
      bool equal = std::memcmp(left.data(), right.data(), left.size_bytes()) == 0;
      if (!equal && rounds) {
        rounded = true;
        for (const auto part : {left, right}) {
          std::transform(part.begin(), part.end(), part.begin(),
                         [](float value) { return to_float(to_bf16(value)); });
        }
        equal = std::memcmp(left.data(), right.data(), left.size_bytes()) == 0;
      }
      if (!equal) {
        const auto bad = std::mismatch(left.begin(), left.end(), right.begin(), [](float p, float q) {
                           return std::bit_cast<uint32_t>(p) == std::bit_cast<uint32_t>(q);
                         }).first;
        const int64_t index = at + (bad - left.begin());
        out.detail = fmt::format("element {} is {} against {}", index, *bad,
                                 right[static_cast<size_t>(bad - left.begin())]);
        return absl::OkStatus();
      }
      release(spec, at, count);
      at += static_cast<int64_t>(count);
    }
    out.relation = rounded ? Relation::kQuantized : Relation::kEqual;
    return absl::OkStatus();
  }

  void release(const ParamSpec& spec, int64_t at, size_t count) const {
    for (const HfCheckpoint* side : {&a_, &b_}) {
      const StoredWeight& weight = *side->stored(spec.name);
      const int64_t row = at / weight.cols;
      side->release(weight, row, (at + static_cast<int64_t>(count)) / weight.cols - row);
    }
  }

  Status compare_with_quantized(const ParamSpec& spec, const HfCheckpoint& plain,
                                const HfCheckpoint& quantized, VerifiedTensor& out) {
    const StoredWeight& stored = *quantized.stored(spec.name);
    if (stored.encoding != Encoding::kFp8Block) {
      ACCORD_ASSIGN_OR_RETURN(out.detail, requantized_difference(spec, plain, quantized, stored));
      if (out.detail.empty()) {
        out.relation = Relation::kQuantized;
        return absl::OkStatus();
      }
    }
    ACCORD_ASSIGN_OR_RETURN(const std::string decoded, decoded_difference(spec, plain, stored));
    if (decoded.empty()) {
      out.relation = Relation::kDecoded;
      out.detail.clear();
    } else if (out.detail.empty()) {
      out.detail = decoded;
    }
    return absl::OkStatus();
  }

  // Where Q(plain) differs from the stored bytes; empty: nowhere.
  StatusOr<std::string> requantized_difference(const ParamSpec& spec, const HfCheckpoint& plain,
                                               const HfCheckpoint& quantized, const StoredWeight& stored) {
    const precision::PlanRow row = row_of(spec, stored, quantized.quantization().nvfp4);
    const WeightTiles& source = &plain == &a_ ? a_tiles_ : b_tiles_;
    float outer = 0.0F;
    if (stored.encoding == Encoding::kNvfp4) {
      ACCORD_ASSIGN_OR_RETURN(outer, unit_amax(spec, plain, source));
      if (!same_outer(quantized.quantization(), stored, outer)) {
        return fmt::format("outer scale {}, quantizing gives {}", stored.outer, outer);
      }
    }
    std::vector<WeightTile> tiles;
    source.add(spec, {&row, outer}, tiles);
    const int64_t data_row = stored.data->bytes / stored.rows;
    const int64_t scale_row = stored.scales->bytes / stored.rows;
    std::mutex mutex;
    int64_t first_bad_row = stored.rows;
    ACCORD_RETURN_IF_ERROR(
        source.for_each(tiles, [&](const WeightTile& tile, const TileBytes& bytes) -> Status {
          const std::byte* data = stored.data->data + tile.row_begin * data_row;
          const std::byte* scales = stored.scales->data + tile.row_begin * scale_row;
          if (std::memcmp(data, bytes.data.data(), bytes.data.size()) != 0 ||
              std::memcmp(scales, bytes.scales.data(), bytes.scales.size()) != 0) {
            const std::lock_guard lock(mutex);
            first_bad_row = std::min(first_bad_row, tile.row_begin);
          }
          quantized.release(stored, tile.row_begin, tile.rows);
          return absl::OkStatus();
        }));
    return first_bad_row == stored.rows
               ? std::string()
               : fmt::format("quantizing gives other bytes, from row {} or a few later on", first_bad_row);
  }

  // Where S of the contract is at its end, which is A of at most 7.9e-36, a file does not hold A but only
  // 1/S.
  static bool same_outer(const checkpoint::QuantizationConfig& config, const StoredWeight& stored,
                         float outer) {
    if (config.method == checkpoint::QuantMethod::kModelopt && config.by_accord &&
        stored.stored_outer <= 1.0F / FLT_MAX) {
      return std::bit_cast<uint32_t>(formats::outer_scale(outer, stored.range).inverse) ==
             std::bit_cast<uint32_t>(stored.stored_outer);
    }
    return std::bit_cast<uint32_t>(outer) == std::bit_cast<uint32_t>(stored.outer);
  }

  // Over gate and up of the MLP, as the contract's units say.
  StatusOr<float> unit_amax(const ParamSpec& spec, const HfCheckpoint& plain,
                            const WeightTiles& source) const {
    std::vector<WeightTile> tiles;
    const bool half = spec.role == ParamRole::kGate || spec.role == ParamRole::kUp;
    const auto module_of = [](const std::string& name) {
      return name.substr(0, name.rfind('.', name.rfind('.') - 1));
    };
    for (const ParamSpec& other : plain.specs()) {
      const bool may_be = other.layer == spec.layer && other.expert == spec.expert;
      const bool other_half = half && (other.role == ParamRole::kGate || other.role == ParamRole::kUp);
      const bool same_unit = may_be && (other.name == spec.name ||
                                        (other_half && module_of(other.name) == module_of(spec.name)));
      if (same_unit) {
        source.add(other, {}, tiles);
      }
    }
    ACCORD_ASSIGN_OR_RETURN(const std::vector<float> amax, source.amax(tiles));
    return amax.empty() ? 0.0F : *std::max_element(amax.begin(), amax.end());
  }

  StatusOr<std::string> decoded_difference(const ParamSpec& spec, const HfCheckpoint& plain,
                                           const StoredWeight& stored) const {
    const int64_t rows_at_a_time = std::max<int64_t>(static_cast<int64_t>(kPart) / 4 / stored.cols, 1);
    std::vector<float> x;
    std::vector<float> y;
    for (int64_t row = 0; row < stored.rows; row += rows_at_a_time) {
      const int64_t rows = std::min(rows_at_a_time, stored.rows - row);
      x.resize(static_cast<size_t>(rows * stored.cols));
      y.resize(x.size());
      ACCORD_RETURN_IF_ERROR(checkpoint::decode(stored, row * stored.cols, x));
      ACCORD_RETURN_IF_ERROR(plain.read_f32(spec.name, row * stored.cols, y));
      for (size_t i = 0; i < x.size(); ++i) {
        if (to_bf16(x[i]).bits != to_bf16(y[i]).bits) {
          return fmt::format("element {} decodes to {} against {}",
                             row * stored.cols + static_cast<int64_t>(i), x[i], y[i]);
        }
      }
    }
    return std::string();
  }

  const HfCheckpoint& a_;
  const HfCheckpoint& b_;
  ThreadPool pool_;
  WeightTiles a_tiles_;
  WeightTiles b_tiles_;
  int64_t read_ = 0;  // elements since the last release
};

}  // namespace

std::string_view name_of(Relation relation) {
  switch (relation) {
    case Relation::kEqual:
      return "equal";
    case Relation::kQuantized:
      return "quantized";
    case Relation::kDecoded:
      return "decoded";
    case Relation::kDifferent:
      return "different";
  }
  return "?";
}

int64_t Verification::count(Relation relation) const {
  return std::count_if(tensors.begin(), tensors.end(),
                       [relation](const VerifiedTensor& tensor) { return tensor.relation == relation; });
}

StatusOr<Verification> verify_checkpoints(const std::string& a, const std::string& b, int threads) {
  ACCORD_ASSIGN_OR_RETURN(const HfCheckpoint x, HfCheckpoint::open(a));
  ACCORD_ASSIGN_OR_RETURN(const HfCheckpoint y, HfCheckpoint::open(b));
  return Verifier(x, y, thread_count(threads)).run();
}

}  // namespace accord::controller
