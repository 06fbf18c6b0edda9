#include "checkpoint/stored_weight.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <utility>

#include "checkpoint/strict_json.hpp"
#include "kernels/formats/decode.hpp"
#include "kernels/formats/element.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/nvfp4.hpp"

namespace accord::checkpoint {
namespace {

constexpr int64_t kFp8Block = 128;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

const uint8_t* bytes_of(const TensorInfo* tensor) { return reinterpret_cast<const uint8_t*>(tensor->data); }

float scalar_of(const TensorInfo& tensor) {
  float value = 0.0F;
  std::memcpy(&value, tensor.data, sizeof(value));
  return value;
}

int64_t block_of(Encoding encoding) {
  switch (encoding) {
    case Encoding::kMxfp8:
      return formats::kMxfp8Block;
    case Encoding::kNvfp4:
      return formats::kNvfp4Block;
    case Encoding::kPlain:
    case Encoding::kFp8Block:
      break;
  }
  return 1;
}

float fp8_block_scale(const TensorInfo& scales, int64_t index) {
  if (scales.dtype == Dtype::kBF16) {
    BF16 value;
    std::memcpy(&value, scales.data + index * size_of(Dtype::kBF16), sizeof(value));
    return to_float(value);
  }
  float value = 0.0F;
  std::memcpy(&value, scales.data + index * size_of(Dtype::kF32), sizeof(value));
  return value;
}

void decode_fp8_blocks(const StoredWeight& w, int64_t row, int64_t col, int64_t count, float* out) {
  const float* table = formats::e4m3_table();
  const uint8_t* codes = bytes_of(w.data) + row * w.cols + col;
  const int64_t scales_per_row = ceil_div(w.cols, kFp8Block);
  for (int64_t i = 0; i < count;) {
    const int64_t block = (col + i) / kFp8Block;
    const int64_t end = std::min(count, (block + 1) * kFp8Block - col);
    const float scale = fp8_block_scale(*w.scales, row / kFp8Block * scales_per_row + block);
    for (; i < end; ++i) {
      out[i] = table[codes[i]] * scale;
    }
  }
}

// Columns [col, col + count) of one row; both are multiples of the block.
void decode_row(const StoredWeight& w, int64_t row, int64_t col, int64_t count, float* out) {
  const int64_t at = row * w.cols + col;
  switch (w.encoding) {
    case Encoding::kMxfp8:
      formats::decode_mxfp8_row(bytes_of(w.data) + at, bytes_of(w.scales) + at / formats::kMxfp8Block, count,
                                out);
      return;
    case Encoding::kNvfp4:
      formats::decode_nvfp4_row(bytes_of(w.data) + at / 2, bytes_of(w.scales) + at / formats::kNvfp4Block,
                                w.outer, w.range, count, out);
      return;
    case Encoding::kFp8Block:
      decode_fp8_blocks(w, row, col, count, out);
      return;
    case Encoding::kPlain:
      return;
  }
}

// The scales of columns [col, col + count) of one row; none of a format may be negative or NaN, and one that
// is would make plausible values of damaged bytes.
Status check_scales(const StoredWeight& w, int64_t row, int64_t col, int64_t count) {
  const bool in_blocks = w.encoding == Encoding::kFp8Block;
  const int64_t block = in_blocks ? kFp8Block : block_of(w.encoding);
  const int64_t per_row = ceil_div(w.cols, block);
  const int64_t scale_row = in_blocks ? row / kFp8Block : row;
  const int64_t first = scale_row * per_row + col / block;
  const int64_t last = scale_row * per_row + ceil_div(col + count, block);
  const auto bad = [&](int64_t at) -> bool {
    switch (w.encoding) {
      case Encoding::kMxfp8:
        return bytes_of(w.scales)[at] == 0xff;
      case Encoding::kNvfp4:
        return bytes_of(w.scales)[at] >= 0x7f;
      case Encoding::kFp8Block: {
        const float scale = fp8_block_scale(*w.scales, at);
        return !std::isfinite(scale) || scale < 0.0F;
      }
      case Encoding::kPlain:
        break;
    }
    return false;
  };
  for (int64_t at = first; at < last; ++at) {
    if (bad(at)) {
      const int code = bytes_of(w.scales)[at];
      const std::string what = in_blocks               ? fmt::format("{}", fp8_block_scale(*w.scales, at))
                               : (code & 0x7f) == 0x7f ? fmt::format("NaN ({:#04x})", code)
                                                       : fmt::format("negative ({:#04x})", code);
      return data_error(
          "tensor '{}': the scale at row {}, column {} is {}; scales are finite and not negative: download "
          "it "
          "again, or convert the BF16 checkpoint again",
          printable(w.scales->name), scale_row, at - scale_row * per_row, what);
    }
  }
  return absl::OkStatus();
}

// One of the tensors that belong to a quantized weight.
struct Expected {
  std::string name;
  std::vector<Dtype> dtypes;
  std::vector<std::vector<int64_t>> shapes;
};

std::string describe(const Expected& expected) {
  std::string text = fmt::format("{} ", expected.name);
  for (size_t i = 0; i < expected.dtypes.size(); ++i) {
    text += fmt::format("{}{}", i == 0 ? "" : " or ", dtype_name(expected.dtypes[i]));
  }
  return text + " " + shape_text(expected.shapes.front());
}

template <class T>
bool contains(const std::vector<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

StatusOr<const TensorInfo*> require(const ShardedTensors& tensors, const std::string& weight,
                                    const Expected& expected, std::vector<std::string>& used) {
  const TensorInfo* tensor = tensors.find(expected.name);
  if (tensor == nullptr) {
    return data_error("{}: weight '{}' is quantized, but '{}' is missing; download the checkpoint again",
                      tensors.file_of(weight), weight, expected.name);
  }
  if (!contains(expected.dtypes, tensor->dtype) || !contains(expected.shapes, tensor->shape)) {
    return data_error("{}: tensor '{}' is {} {}, expected {}", tensors.file_of(expected.name), expected.name,
                      dtype_name(tensor->dtype), shape_text(tensor->shape), describe(expected));
  }
  used.push_back(expected.name);
  return tensor;
}

struct Names {
  std::string data;
  std::string scales;
  std::string outer;
  std::vector<std::string> unused;  // known, and not needed here
};

Names names_of(QuantMethod method, const std::string& weight) {
  const std::string module = weight.substr(0, weight.rfind('.') + 1);
  switch (method) {
    case QuantMethod::kMxfp8:
    case QuantMethod::kFp8Block:
      return {weight, weight + "_scale_inv", "", {}};
    case QuantMethod::kModelopt:
      return {weight, weight + "_scale", weight + "_scale_2", {module + "input_scale"}};
    case QuantMethod::kCompressedTensors:
      return {
          weight + "_packed", weight + "_scale", weight + "_global_scale", {module + "input_global_scale"}};
    case QuantMethod::kNone:
      break;
  }
  return {};
}

Encoding encoding_of(QuantMethod method) {
  switch (method) {
    case QuantMethod::kMxfp8:
      return Encoding::kMxfp8;
    case QuantMethod::kFp8Block:
      return Encoding::kFp8Block;
    case QuantMethod::kModelopt:
    case QuantMethod::kCompressedTensors:
      return Encoding::kNvfp4;
    case QuantMethod::kNone:
      break;
  }
  return Encoding::kPlain;
}

bool is_floating(Dtype dtype) {
  return dtype == Dtype::kBF16 || dtype == Dtype::kF32 || dtype == Dtype::kF16;
}

bool all_zero(const StoredWeight& w) {
  const uint8_t* codes = bytes_of(w.scales);
  return std::all_of(codes, codes + w.scales->bytes, [](uint8_t code) { return (code & 0x7f) == 0; });
}

// max |q * s| * weight_scale_2 over the unit: what other readers decode.
float decoded_amax(const std::vector<StoredWeight*>& unit) {
  float largest = 0.0F;
  std::vector<float> row;
  for (const StoredWeight* w : unit) {
    row.resize(static_cast<size_t>(w->cols));
    for (int64_t r = 0; r < w->rows; ++r) {
      const int64_t at = r * w->cols;
      formats::decode_nvfp4_products_row(
          bytes_of(w->data) + at / 2, bytes_of(w->scales) + at / formats::kNvfp4Block, w->cols, row.data());
      for (const float x : row) {
        largest = std::max(largest, std::fabs(x));
      }
    }
  }
  return largest * unit.front()->stored_outer;
}

Status bad_outer(const StoredWeight& w) {
  return data_error("tensor '{}': its outer scale is {}, must be finite and above 0; download it again",
                    printable(w.data->name), w.stored_outer);
}

}  // namespace

std::string_view name_of(Encoding encoding) {
  switch (encoding) {
    case Encoding::kPlain:
      return "bf16";
    case Encoding::kMxfp8:
      return "mxfp8";
    case Encoding::kNvfp4:
      return "nvfp4";
    case Encoding::kFp8Block:
      return "fp8 in blocks of 128x128";
  }
  return "?";
}

Status decode(const StoredWeight& w, int64_t at, std::span<float> out) {
  if (w.encoding == Encoding::kPlain) {
    return convert_to_f32(*w.data, w.first + at, out);
  }
  const int64_t block = block_of(w.encoding);
  std::vector<float> whole;  // blocks that are wanted in part
  for (size_t done = 0; done < out.size();) {
    const int64_t row = at / w.cols;
    const int64_t col = at % w.cols;
    const int64_t count = std::min(w.cols - col, static_cast<int64_t>(out.size() - done));
    const int64_t begin = col / block * block;
    const int64_t end = ceil_div(col + count, block) * block;
    ACCORD_RETURN_IF_ERROR(check_scales(w, row, begin, end - begin));
    if (begin == col && end == col + count) {
      decode_row(w, row, col, count, out.data() + done);
    } else {
      whole.resize(static_cast<size_t>(end - begin));
      decode_row(w, row, begin, end - begin, whole.data());
      std::copy_n(whole.begin() + (col - begin), count, out.begin() + static_cast<std::ptrdiff_t>(done));
    }
    at += count;
    done += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

StatusOr<std::optional<StoredWeight>> find_quantized(const ShardedTensors& tensors,
                                                     const QuantizationConfig& config,
                                                     const std::string& name,
                                                     const std::vector<int64_t>& shape,
                                                     std::vector<std::string>& tensors_used) {
  const Names names = names_of(config.method, name);
  const TensorInfo* data = names.data.empty() ? nullptr : tensors.find(names.data);
  if (data == nullptr || shape.size() != 2 || is_floating(data->dtype)) {
    return std::optional<StoredWeight>();
  }
  StoredWeight w;
  w.encoding = encoding_of(config.method);
  w.rows = shape[0];
  w.cols = shape[1];
  w.range = static_cast<int>(config.nvfp4.range);
  const bool packed = w.encoding == Encoding::kNvfp4;
  const int64_t block = block_of(w.encoding);
  if (w.cols % block != 0) {
    return data_error("{}: weight '{}' of shape {} is quantized, but {} does not divide {} columns",
                      tensors.file_of(names.data), name, shape_text(shape), block, w.cols);
  }
  const Dtype data_dtype = packed ? Dtype::kU8 : Dtype::kF8E4M3;
  ACCORD_ASSIGN_OR_RETURN(
      w.data, require(tensors, names.data,
                      {names.data, {data_dtype}, {{w.rows, packed ? w.cols / 2 : w.cols}}}, tensors_used));
  Expected scales{names.scales, {Dtype::kF8E4M3}, {{w.rows, w.cols / block}}};
  if (w.encoding == Encoding::kMxfp8) {
    scales.dtypes = {Dtype::kU8};
  } else if (w.encoding == Encoding::kFp8Block) {
    scales.dtypes = {Dtype::kF32, Dtype::kBF16};
    scales.shapes = {{ceil_div(w.rows, kFp8Block), ceil_div(w.cols, kFp8Block)}};
  }
  ACCORD_ASSIGN_OR_RETURN(w.scales, require(tensors, names.data, scales, tensors_used));
  if (!names.outer.empty()) {
    ACCORD_ASSIGN_OR_RETURN(
        const TensorInfo* outer,
        require(tensors, names.data, {names.outer, {Dtype::kF32}, {{}, {1}}}, tensors_used));
    w.stored_outer = scalar_of(*outer);
  }
  for (const std::string& unused : names.unused) {
    if (const TensorInfo* tensor = tensors.find(unused); tensor != nullptr) {
      w.input_scale = tensor;
      tensors_used.push_back(unused);
    }
  }
  return std::optional<StoredWeight>(w);
}

Status settle_outer_scale(const QuantizationConfig& config, const std::vector<StoredWeight*>& unit) {
  for (StoredWeight* w : unit) {
    if (!std::isfinite(w->stored_outer) || w->stored_outer <= 0.0F) {
      return bad_outer(*w);
    }
    if (config.method == QuantMethod::kCompressedTensors) {
      w->outer = 2688.0F / w->stored_outer;
    } else if (!config.by_accord) {
      w->outer = 2688.0F * w->stored_outer;
    }
    if (!config.by_accord && !std::isfinite(w->outer)) {
      return bad_outer(*w);
    }
  }
  if (!config.by_accord) {
    return absl::OkStatus();
  }
  const StoredWeight& first = *unit.front();
  for (const StoredWeight* w : unit) {
    if (w->stored_outer != first.stored_outer) {
      return data_error(
          "tensors '{}' and '{}' are one unit, but their outer scales differ ({} and {}); "
          "convert the BF16 checkpoint again",
          printable(first.data->name), printable(w->data->name), first.stored_outer, w->stored_outer);
    }
  }
  const float divisor = 6.0F * static_cast<float>(first.range);
  float amax = to_float(to_bf16(divisor * first.stored_outer));
  const bool scale_clamped = first.stored_outer <= 1.0F / FLT_MAX;
  if (scale_clamped) {
    amax = to_float(to_bf16(decoded_amax(unit)));
  } else if (first.stored_outer == 1.0F &&
             std::all_of(unit.begin(), unit.end(), [](const StoredWeight* w) { return all_zero(*w); })) {
    amax = 0.0F;
  }
  if (!std::isfinite(amax)) {
    return bad_outer(first);
  }
  for (StoredWeight* w : unit) {
    w->outer = amax;
  }
  return absl::OkStatus();
}

}  // namespace accord::checkpoint
