#pragma once
// cuBLASLt's functions, found when a Blackwell device first needs them: programs run where there is none. The
// declarations follow the C interface of cublasLt.h (CUDA 13.0); the header is not needed to build
// (tests/gpu/cublaslt_abi_test.cpp compares the two).
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.hpp"
#include "device/stream_handle.hpp"

namespace accord::kernels::block_scaled {

// Their opaque structures.
using LtHandle = void*;
using LtDescriptor = void*;
using LtLayout = void*;
using LtPreference = void*;

struct LtAlgorithm {  // cublasLtMatmulAlgo_t
  uint64_t data[8] = {};
};

struct LtHeuristic {  // cublasLtMatmulHeuristicResult_t
  LtAlgorithm algorithm;
  size_t workspace = 0;
  int state = 0;
  float waves = 0.0F;
  int reserved[4] = {};
};

// Values of the header's enumerations, under their names there.
constexpr int kLtSuccess = 0;          // CUBLAS_STATUS_SUCCESS
constexpr int kLtInvalidValue = 7;     // CUBLAS_STATUS_INVALID_VALUE
constexpr int kLtNotSupported = 15;    // CUBLAS_STATUS_NOT_SUPPORTED
constexpr int32_t kLtTypeF32 = 0;      // CUDA_R_32F
constexpr int32_t kLtTypeBF16 = 14;    // CUDA_R_16BF
constexpr int32_t kLtTypeE4M3 = 28;    // CUDA_R_8F_E4M3
constexpr int32_t kLtTypeE2M1 = 33;    // CUDA_R_4F_E2M1
constexpr int32_t kLtCompute32F = 68;  // CUBLAS_COMPUTE_32F
constexpr int32_t kLtOpN = 0;          // CUBLAS_OP_N
constexpr int32_t kLtOpT = 1;          // CUBLAS_OP_T
constexpr int32_t kLtPointerModeDevice = 1;
constexpr int32_t kLtScaleVec16UE4M3 = 1;
constexpr int32_t kLtScaleVec32UE8M0 = 2;
constexpr uint32_t kLtReductionNone = 0;

enum class LtDescriptorAttribute : int {  // cublasLtMatmulDescAttributes_t
  kPointerMode = 2,
  kTransA = 3,
  kTransB = 4,
  kAScalePointer = 17,
  kBScalePointer = 18,
  kAScaleMode = 31,
  kBScaleMode = 32,
};

enum class LtPreferenceAttribute : int {  // cublasLtMatmulPreferenceAttributes_t
  kMaxWorkspaceBytes = 1,
  kReductionSchemeMask = 3,
  kMinAlignmentA = 5,
  kMinAlignmentB = 6,
  kMinAlignmentC = 7,
  kMinAlignmentD = 8,
};

enum class LtConfigAttribute : int {  // cublasLtMatmulAlgoConfigAttributes_t
  kId = 0,
  kTile = 1,
  kSplitK = 2,
  kReductionScheme = 3,
  kSwizzling = 4,
  kCustomOption = 5,
  kStages = 6,
  kInnerShape = 7,
  kClusterShape = 8,
};

// Everything but the version returns cublasStatus_t. Tests put their own functions here.
struct LtApi {
  std::string origin;  // the library's name, and its version
  size_t version = 0;  // 130100: 13.1.0
  int (*create)(LtHandle* handle) = nullptr;
  int (*destroy)(LtHandle handle) = nullptr;
  int (*descriptor_create)(LtDescriptor* descriptor, int32_t compute, int32_t scale) = nullptr;
  int (*descriptor_destroy)(LtDescriptor descriptor) = nullptr;
  int (*descriptor_set)(LtDescriptor descriptor, int attribute, const void* value, size_t bytes) = nullptr;
  int (*layout_create)(LtLayout* layout, int32_t type, uint64_t rows, uint64_t cols, int64_t ld) = nullptr;
  int (*layout_destroy)(LtLayout layout) = nullptr;
  int (*preference_create)(LtPreference* preference) = nullptr;
  int (*preference_destroy)(LtPreference preference) = nullptr;
  int (*preference_set)(LtPreference preference, int attribute, const void* value, size_t bytes) = nullptr;
  int (*get_heuristic)(LtHandle handle, LtDescriptor descriptor, LtLayout a, LtLayout b, LtLayout c,
                       LtLayout d, LtPreference preference, int requested, LtHeuristic* results,
                       int* returned) = nullptr;
  int (*check)(LtHandle handle, LtDescriptor descriptor, LtLayout a, LtLayout b, LtLayout c, LtLayout d,
               const LtAlgorithm* algorithm, LtHeuristic* result) = nullptr;
  int (*config_get)(const LtAlgorithm* algorithm, int attribute, void* value, size_t bytes,
                    size_t* written) = nullptr;
  int (*matmul)(LtHandle handle, LtDescriptor descriptor, const void* alpha, const void* a, LtLayout a_layout,
                const void* b, LtLayout b_layout, const void* beta, const void* c, LtLayout c_layout, void* d,
                LtLayout d_layout, const LtAlgorithm* algorithm, void* workspace, size_t workspace_bytes,
                StreamHandle stream) = nullptr;
  const char* (*status_string)(int status) = nullptr;
};

// Whether block-scaled products are switched off: ACCORD_CUBLASLT is "off".
bool cublaslt_is_off();

// The library named by the environment variable ACCORD_CUBLASLT, else libcublasLt.so.13 as the dynamic linker
// finds it, else the CUDA toolkit's. It stays loaded. Errors: kUnavailable, saying what was tried and what to
// do; also where it is off.
StatusOr<LtApi> load_cublaslt();

// load_cublaslt; where devices are emulated (tests), a cuBLASLt for such devices, unless ACCORD_CUBLASLT
// names another.
StatusOr<LtApi> cublaslt_of_this_build();

}  // namespace accord::kernels::block_scaled
