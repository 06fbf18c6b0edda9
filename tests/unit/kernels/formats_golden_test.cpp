// Bytes that other implementations of the contract agree on.
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/safetensors.hpp"
#include "formats_inputs.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "kernels/formats/swizzle.hpp"
#include "support/catch.hpp"

namespace {

using namespace accord;
using namespace accord::formats;
using checkpoint::SafetensorsFile;
using checkpoint::TensorInfo;
using formats_inputs::count_different;

struct Result {
  std::vector<uint8_t> data;
  std::vector<uint8_t> scale;
  std::vector<float> amax;
  std::vector<float> dequant;
};

template <class T>
std::vector<T> values_of(const TensorInfo& tensor) {
  std::vector<T> out(static_cast<size_t>(tensor.bytes) / sizeof(T));
  std::memcpy(out.data(), tensor.data, out.size() * sizeof(T));
  return out;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == '.') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

Result run_mxfp8(MatrixView x, Axis axis) {
  Result out;
  out.data.resize(static_cast<size_t>(x.rows * x.cols));
  out.scale.resize(out.data.size() / 32);
  out.dequant.resize(out.data.size());
  if (axis == Axis::kRow) {
    quantize_mxfp8_rows(x, out.data.data(), out.scale.data(), Element::kE4M3);
  } else {
    quantize_mxfp8_cols(x, out.data.data(), out.scale.data(), Element::kE4M3);
  }
  dequantize_mxfp8(out.data.data(), out.scale.data(), x.rows, x.cols, axis, Element::kE4M3,
                   out.dequant.data());
  return out;
}

Result run_nvfp4(MatrixView x, const std::string& scope, FourOverSix mode, int range) {
  const Nvfp4Options options{scope == "row" ? Nvfp4Scope::kToken : Nvfp4Scope::kTensor,
                             scope == "2d" ? Nvfp4Layout::k16x16 : Nvfp4Layout::k1x16, mode, range};
  REQUIRE(check_nvfp4_shape(x.rows, x.cols, options).ok());
  Result out;
  const auto elements = static_cast<size_t>(x.rows * x.cols);
  out.data.resize(elements / 2);
  out.scale.resize(elements / 16);
  out.amax.resize(scope == "row" ? static_cast<size_t>(x.rows) : 1);
  out.dequant.resize(elements);
  quantize_nvfp4(x, options, {out.data.data(), out.scale.data(), out.amax.data()});
  dequantize_nvfp4(out.data.data(), out.scale.data(), out.amax.data(), x.rows, x.cols, options.scope, range,
                   out.dequant.data());
  return out;
}

// The result that the tensor `name` is a part of; none for the input itself.
std::optional<Result> run(const std::vector<std::string>& name, MatrixView x) {
  if (name[0] == "mxfp8") {
    return run_mxfp8(x, name[1] == "row" ? Axis::kRow : Axis::kCol);
  }
  if (name[0] == "nvfp4") {
    return run_nvfp4(x, name[1], FourOverSix::kNone, 448);
  }
  if (name[0] == "four_over_six") {
    const FourOverSix mode = name[2] == "MAE" ? FourOverSix::kMae : FourOverSix::kMse;
    return run_nvfp4(x, name[1], mode, std::stoi(name[3]));
  }
  return std::nullopt;
}

int64_t different(const TensorInfo& tensor, const std::string& part, const Result& result) {
  if (part == "data") {
    return count_different(values_of<uint8_t>(tensor), result.data);
  }
  if (part == "scale") {
    return count_different(values_of<uint8_t>(tensor), result.scale);
  }
  if (part == "amax") {
    return count_different(values_of<float>(tensor), result.amax);
  }
  if (part == "dequant") {
    return count_different(values_of<float>(tensor), result.dequant);
  }
  return -1;
}

int64_t different_swizzled(const TensorInfo& tensor, const Result& result, int64_t rows) {
  const int64_t inner = static_cast<int64_t>(result.scale.size()) / rows;
  std::vector<uint8_t> tiles(static_cast<size_t>(swizzled_scale_size(rows, inner)), 0xaa);
  swizzle_scales(result.scale.data(), rows, inner, tiles.data());
  return count_different(values_of<uint8_t>(tensor), tiles);
}

}  // namespace

TEST_CASE("formats: every reference byte is reproduced") {
  int64_t num_files = 0;
  int64_t num_tensors = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(ACCORD_TEST_DATA) + "/quant")) {
    if (entry.path().extension() != ".safetensors") {
      continue;
    }
    const auto file = SafetensorsFile::open(entry.path().string());
    REQUIRE(file.ok());
    ++num_files;
    const auto input = file->require("x");
    REQUIRE(input.ok());
    formats_model::Matrix x{values_of<float>(**input), (*input)->shape[0], (*input)->shape[1]};
    for (const TensorInfo& tensor : file->tensors()) {
      const std::vector<std::string> name = split(tensor.name);
      INFO(entry.path().filename().string() << " " << tensor.name);
      const std::optional<Result> result = run(name, matrix_view(x.x.data(), x.rows, x.cols));
      if (!result) {
        REQUIRE(tensor.name == "x");
        continue;
      }
      ++num_tensors;
      if (name.back() == "scale_swizzled") {
        CHECK(different_swizzled(tensor, *result, x.rows) == 0);
      } else {
        CHECK(different(tensor, name.back(), *result) == 0);
      }
    }
  }
  CHECK(num_files == 16);
  CHECK(num_tensors > 400);
}
