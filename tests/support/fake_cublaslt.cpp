#include "support/fake_cublaslt.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/dtype.hpp"
#include "kernels/formats/decode.hpp"
#include "kernels/formats/swizzle.hpp"

namespace {

using namespace accord;
using namespace accord::kernels::block_scaled;
using accord::testing::LtFaults;
using accord::testing::LtMemory;
using accord::testing::LtRecord;

constexpr int kInternalError = 14;
constexpr size_t kLeastWorkspace = size_t{1} << 20;  // of the algorithms
constexpr uint64_t kMagic = 0xacc0bd1ULL;

struct Process {
  std::mutex mutex;
  LtFaults faults;
  LtRecord record;
  LtMemory memory;
};
Process& process() {
  static Process instance;
  return instance;
}

struct Descriptor {
  int32_t compute = -1;
  int32_t scale = -1;
  std::map<int, std::vector<unsigned char>> attributes;

  // The attribute's value; `fallback` is the library's where it was not set.
  template <class T>
  T get(LtDescriptorAttribute attribute, T fallback) const {
    const auto found = attributes.find(static_cast<int>(attribute));
    if (found == attributes.end()) return fallback;
    T value;
    std::memcpy(&value, found->second.data(), sizeof(value));
    return value;
  }
};
struct Layout {
  int32_t type = -1;
  uint64_t rows = 0, cols = 0;
  int64_t ld = 0;
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t reduction_mask = 7;
  std::map<int, uint32_t> alignments;
};

template <class T>
int make(T** object) {
  *object = new T();
  const std::lock_guard lock(process().mutex);
  ++process().record.live;
  return kLtSuccess;
}
template <class T>
int unmake(void* object) {
  delete static_cast<T*>(object);
  const std::lock_guard lock(process().mutex);
  --process().record.live;
  return kLtSuccess;
}

// Bytes of an attribute as the library stores it; 0: none of these.
size_t size_of_attribute(int attribute) {
  switch (static_cast<LtDescriptorAttribute>(attribute)) {
    case LtDescriptorAttribute::kAScalePointer:
    case LtDescriptorAttribute::kBScalePointer:
      return sizeof(void*);
    case LtDescriptorAttribute::kPointerMode:
    case LtDescriptorAttribute::kTransA:
    case LtDescriptorAttribute::kTransB:
    case LtDescriptorAttribute::kAScaleMode:
    case LtDescriptorAttribute::kBScaleMode:
      return sizeof(int32_t);
  }
  return 0;
}

int create(LtHandle* handle) {
  if (process().faults.create_fails) return 1;  // CUBLAS_STATUS_NOT_INITIALIZED
  Descriptor* context = nullptr;
  const int status = make(&context);
  *handle = context;
  return status;
}

int descriptor_create(LtDescriptor* out, int32_t compute, int32_t scale) {
  Descriptor* d = nullptr;
  make(&d);
  d->compute = compute;
  d->scale = scale;
  *out = d;
  return kLtSuccess;
}

int descriptor_set(LtDescriptor descriptor, int attribute, const void* value, size_t bytes) {
  if (bytes != size_of_attribute(attribute)) return kLtInvalidValue;
  const auto* p = static_cast<const unsigned char*>(value);
  static_cast<Descriptor*>(descriptor)->attributes[attribute].assign(p, p + bytes);
  return kLtSuccess;
}

int layout_create(LtLayout* out, int32_t type, uint64_t rows, uint64_t cols, int64_t ld) {
  if (ld < static_cast<int64_t>(rows)) return kLtInvalidValue;
  Layout* layout = nullptr;
  make(&layout);
  *layout = {type, rows, cols, ld};
  *out = layout;
  return kLtSuccess;
}

int preference_create(LtPreference* out) {
  Preference* preference = nullptr;
  make(&preference);
  *out = preference;
  return kLtSuccess;
}

int preference_set(LtPreference preference, int attribute, const void* value, size_t bytes) {
  auto& p = *static_cast<Preference*>(preference);
  const auto which = static_cast<LtPreferenceAttribute>(attribute);
  if (which == LtPreferenceAttribute::kMaxWorkspaceBytes) {
    if (bytes != sizeof(p.workspace)) return kLtInvalidValue;
    std::memcpy(&p.workspace, value, bytes);
    return kLtSuccess;
  }
  uint32_t number = 0;
  if (bytes != sizeof(number)) return kLtInvalidValue;
  std::memcpy(&number, value, bytes);
  if (which == LtPreferenceAttribute::kReductionSchemeMask) {
    p.reduction_mask = number;
  } else {
    p.alignments[attribute] = number;
  }
  return kLtSuccess;
}

// What a product is made of, once it holds together.
struct Product {
  bool mxfp8 = false;
  bool bf16 = false;
  int64_t m = 0, n = 0, k = 0;  // rows of x, of w, contracted
};

bool is_layout(const Layout& l, int32_t type, int64_t rows, int64_t cols) {
  return l.type == type && static_cast<int64_t>(l.rows) == rows && static_cast<int64_t>(l.cols) == cols &&
         l.ld == rows;
}

int read(const Descriptor& d, const Layout& a, const Layout& b, const Layout& c, const Layout& y,
         Product& out) {
  const auto mode = d.get(LtDescriptorAttribute::kAScaleMode, int32_t{0});
  const bool described = d.compute == kLtCompute32F && d.scale == kLtTypeF32 &&
                         d.get(LtDescriptorAttribute::kTransA, kLtOpN) == kLtOpT &&
                         d.get(LtDescriptorAttribute::kTransB, kLtOpN) == kLtOpN &&
                         d.get(LtDescriptorAttribute::kPointerMode, int32_t{0}) == kLtPointerModeDevice &&
                         d.get(LtDescriptorAttribute::kBScaleMode, int32_t{0}) == mode;
  out.mxfp8 = mode == kLtScaleVec32UE8M0;
  out.bf16 = y.type == kLtTypeBF16;
  out.k = static_cast<int64_t>(a.rows);
  out.n = static_cast<int64_t>(a.cols);
  out.m = static_cast<int64_t>(b.cols);
  const int32_t type = out.mxfp8 ? kLtTypeE4M3 : kLtTypeE2M1;
  if (!described || (!out.mxfp8 && mode != kLtScaleVec16UE4M3) || (!out.bf16 && y.type != kLtTypeF32) ||
      !is_layout(a, type, out.k, out.n) || !is_layout(b, type, out.k, out.m) ||
      !is_layout(y, y.type, out.n, out.m) || !is_layout(c, y.type, out.n, out.m)) {
    return kLtInvalidValue;
  }
  const int64_t row_bytes = out.mxfp8 ? out.k : out.k / 2;
  const bool aligned = row_bytes % 16 == 0 && out.k % 32 == 0 && out.n % 16 == 0;
  return aligned ? kLtSuccess : kLtNotSupported;
}

LtAlgorithm algorithm(uint64_t number, bool split) { return {{kMagic, number, split ? 2ULL : 1ULL}}; }

// First one that splits K, then one for each shape of its own.
int get_heuristic(LtHandle, LtDescriptor descriptor, LtLayout a, LtLayout b, LtLayout c, LtLayout d,
                  LtPreference preference, int requested, LtHeuristic* results, int* returned) {
  *returned = 0;
  Process& p = process();
  const std::lock_guard lock(p.mutex);
  ++p.record.heuristics;
  if (p.faults.not_supported) return kLtNotSupported;
  Product product;
  const int status =
      read(*static_cast<Descriptor*>(descriptor), *static_cast<Layout*>(a), *static_cast<Layout*>(b),
           *static_cast<Layout*>(c), *static_cast<Layout*>(d), product);
  if (status != kLtSuccess) return status;
  const auto& asked = *static_cast<Preference*>(preference);
  if (requested < 2 || asked.workspace < kLeastWorkspace || asked.reduction_mask != kLtReductionNone ||
      asked.alignments.size() != 4) {
    return kLtInvalidValue;
  }
  const auto number = static_cast<uint64_t>(p.faults.first_algorithm);
  results[0].algorithm = algorithm(number, /*split=*/true);
  results[1].algorithm = algorithm(number + 1, p.faults.only_split);
  for (int i = 0; i < 2; ++i) {
    results[i].workspace = kLeastWorkspace;
    results[i].state = kLtSuccess;
  }
  *returned = 2;
  return kLtSuccess;
}

int check_algorithm(LtHandle, LtDescriptor descriptor, LtLayout a, LtLayout b, LtLayout c, LtLayout d,
                    const LtAlgorithm* chosen, LtHeuristic* result) {
  Product product;
  const int status =
      read(*static_cast<Descriptor*>(descriptor), *static_cast<Layout*>(a), *static_cast<Layout*>(b),
           *static_cast<Layout*>(c), *static_cast<Layout*>(d), product);
  if (status != kLtSuccess) return status;
  if (chosen->data[0] != kMagic) return kLtInvalidValue;
  result->workspace = kLeastWorkspace;
  return process().faults.few_rows_only ? kLtNotSupported : kLtSuccess;
}

int config_get(const LtAlgorithm* a, int attribute, void* value, size_t bytes, size_t* written) {
  const auto which = static_cast<LtConfigAttribute>(attribute);
  const bool is_short = which == LtConfigAttribute::kInnerShape || which == LtConfigAttribute::kClusterShape;
  if (a->data[0] != kMagic || bytes != (is_short ? sizeof(uint16_t) : sizeof(uint32_t))) {
    return kLtInvalidValue;
  }
  std::memset(value, 0, bytes);
  const auto number = static_cast<uint32_t>(which == LtConfigAttribute::kId       ? a->data[1]
                                            : which == LtConfigAttribute::kSplitK ? a->data[2]
                                                                                  : 0);
  if (!is_short) std::memcpy(value, &number, sizeof(number));
  *written = bytes;
  return kLtSuccess;
}

// The decoded rows of an operand, its scales in tiles.
std::vector<float> decode(const Product& p, const unsigned char* codes, const unsigned char* tiles,
                          int64_t rows) {
  const int64_t inner = p.k / (p.mxfp8 ? 32 : 16);
  std::vector<unsigned char> scales(static_cast<size_t>(rows * inner));
  formats::unswizzle_scales(tiles, rows, inner, scales.data());
  std::vector<float> values(static_cast<size_t>(rows * p.k));
  for (int64_t r = 0; r < rows; ++r) {
    float* const out = values.data() + r * p.k;
    if (p.mxfp8) {
      formats::decode_mxfp8_row(codes + r * p.k, scales.data() + r * inner, p.k, out);
    } else {
      formats::decode_nvfp4_products_row(codes + r * (p.k / 2), scales.data() + r * inner, p.k, out);
    }
  }
  return values;
}

int matmul(LtHandle, LtDescriptor descriptor, const void* alpha, const void* a, LtLayout a_layout,
           const void* b, LtLayout b_layout, const void* beta, const void* c, LtLayout c_layout, void* d,
           LtLayout d_layout, const LtAlgorithm* chosen, void* workspace, size_t workspace_bytes,
           StreamHandle stream) {
  const auto& operation = *static_cast<Descriptor*>(descriptor);
  Product p;
  const int status = read(operation, *static_cast<Layout*>(a_layout), *static_cast<Layout*>(b_layout),
                          *static_cast<Layout*>(c_layout), *static_cast<Layout*>(d_layout), p);
  if (status != kLtSuccess) return status;
  const void* a_tiles = operation.get<const void*>(LtDescriptorAttribute::kAScalePointer, nullptr);
  const void* b_tiles = operation.get<const void*>(LtDescriptorAttribute::kBScalePointer, nullptr);
  for (const void* pointer : {a, b, c, static_cast<const void*>(d), a_tiles, b_tiles}) {
    if (pointer == nullptr || reinterpret_cast<uintptr_t>(pointer) % 16 != 0) return kLtInvalidValue;
  }
  if (chosen == nullptr || chosen->data[0] != kMagic || chosen->data[2] != 1 || c != d ||
      workspace_bytes < kLeastWorkspace) {
    return kLtInvalidValue;
  }
  LtMemory memory;
  {
    const std::lock_guard lock(process().mutex);
    process().record.calls.push_back(
        {p.m, p.n, p.k, static_cast<Layout*>(a_layout)->type, static_cast<Layout*>(d_layout)->type,
         operation.get(LtDescriptorAttribute::kAScaleMode, int32_t{0}), chosen->data[1], d});
    memory = process().memory;
  }
  const auto at = [&](const void* pointer, int64_t bytes) {
    return memory ? memory(pointer, static_cast<size_t>(bytes), stream) : const_cast<void*>(pointer);
  };
  const int64_t row_bytes = p.mxfp8 ? p.k : p.k / 2;
  const int64_t inner = p.k / (p.mxfp8 ? 32 : 16);
  const auto bytes_of = [&](const void* pointer, int64_t bytes) {
    return static_cast<const unsigned char*>(at(pointer, bytes));
  };
  (void)at(workspace, static_cast<int64_t>(kLeastWorkspace));
  const float scale = *static_cast<const float*>(at(alpha, sizeof(float)));
  if (*static_cast<const float*>(at(beta, sizeof(float))) != 0.0F) return kLtNotSupported;
  const std::vector<float> w = decode(p, bytes_of(a, p.n * row_bytes),
                                      bytes_of(a_tiles, formats::swizzled_scale_size(p.n, inner)), p.n);
  const std::vector<float> x = decode(p, bytes_of(b, p.m * row_bytes),
                                      bytes_of(b_tiles, formats::swizzled_scale_size(p.m, inner)), p.m);
  void* const out = at(d, p.m * p.n * static_cast<int64_t>(p.bf16 ? sizeof(BF16) : sizeof(float)));
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      const float* const left = x.data() + i * p.k;
      const float* const right = w.data() + j * p.k;
      float sum = 0.0F;
      for (int64_t l = 0; l < p.k; ++l) sum += left[l] * right[l];
      const float value = scale * sum;
      if (p.bf16) {
        static_cast<BF16*>(out)[i * p.n + j] = to_bf16(value);
      } else {
        static_cast<float*>(out)[i * p.n + j] = value;
      }
    }
  }
  return kLtSuccess;
}

const char* status_string(int status) {
  return status == kLtNotSupported   ? "the requested functionality is not supported"
         : status == kLtInvalidValue ? "an unsupported value or parameter was passed to the function"
         : status == kInternalError  ? "an internal operation failed"
                                     : "the library was not initialized";
}

}  // namespace

namespace accord::testing {

LtApi fake_cublaslt() {
  LtApi api;
  api.origin = "cuBLASLt 13.1.0 (emulated)";
  api.version = 130100;
  api.create = create;
  api.destroy = unmake<Descriptor>;
  api.descriptor_create = descriptor_create;
  api.descriptor_destroy = unmake<Descriptor>;
  api.descriptor_set = descriptor_set;
  api.layout_create = layout_create;
  api.layout_destroy = unmake<Layout>;
  api.preference_create = preference_create;
  api.preference_destroy = unmake<Preference>;
  api.preference_set = preference_set;
  api.get_heuristic = get_heuristic;
  api.check = check_algorithm;
  api.config_get = config_get;
  api.matmul = matmul;
  api.status_string = status_string;
  return api;
}

LtRecord& lt_record() { return process().record; }

void set_faults(const LtFaults& faults) {
  const std::lock_guard lock(process().mutex);
  process().faults = faults;
  process().record = {};
}

void set_memory(LtMemory memory) {
  const std::lock_guard lock(process().mutex);
  process().memory = std::move(memory);
}

}  // namespace accord::testing
