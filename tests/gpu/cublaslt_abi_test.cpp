// kernels/block_scaled/cublaslt_api.hpp against cuBLASLt's own header, where the build has it.
#include "kernels/block_scaled/cublaslt_api.hpp"

#if __has_include(<cublasLt.h>) && __has_include(<cuda_runtime.h>)
#include <cublasLt.h>

#include <cstddef>
#include <type_traits>

#include "support/catch.hpp"

namespace {

using namespace accord::kernels::block_scaled;

static_assert(sizeof(LtAlgorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(LtHeuristic) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(LtHeuristic, workspace) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(LtHeuristic, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));
static_assert(offsetof(LtHeuristic, waves) == offsetof(cublasLtMatmulHeuristicResult_t, wavesCount));
static_assert(kLtSuccess == CUBLAS_STATUS_SUCCESS && kLtInvalidValue == CUBLAS_STATUS_INVALID_VALUE &&
              kLtNotSupported == CUBLAS_STATUS_NOT_SUPPORTED);
static_assert(kLtTypeF32 == CUDA_R_32F && kLtTypeBF16 == CUDA_R_16BF && kLtTypeE4M3 == CUDA_R_8F_E4M3 &&
              kLtTypeE2M1 == CUDA_R_4F_E2M1);
static_assert(kLtCompute32F == CUBLAS_COMPUTE_32F && kLtOpN == CUBLAS_OP_N && kLtOpT == CUBLAS_OP_T);
static_assert(kLtPointerModeDevice == CUBLASLT_POINTER_MODE_DEVICE);
static_assert(kLtScaleVec16UE4M3 == CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3 &&
              kLtScaleVec32UE8M0 == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0);
static_assert(kLtReductionNone == CUBLASLT_REDUCTION_SCHEME_NONE);

static_assert(int(LtDescriptorAttribute::kPointerMode) == CUBLASLT_MATMUL_DESC_POINTER_MODE);
static_assert(int(LtDescriptorAttribute::kTransA) == CUBLASLT_MATMUL_DESC_TRANSA);
static_assert(int(LtDescriptorAttribute::kTransB) == CUBLASLT_MATMUL_DESC_TRANSB);
static_assert(int(LtDescriptorAttribute::kAScalePointer) == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
static_assert(int(LtDescriptorAttribute::kBScalePointer) == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
static_assert(int(LtDescriptorAttribute::kAScaleMode) == CUBLASLT_MATMUL_DESC_A_SCALE_MODE);
static_assert(int(LtDescriptorAttribute::kBScaleMode) == CUBLASLT_MATMUL_DESC_B_SCALE_MODE);

static_assert(int(LtPreferenceAttribute::kMaxWorkspaceBytes) == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(int(LtPreferenceAttribute::kReductionSchemeMask) == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
static_assert(int(LtPreferenceAttribute::kMinAlignmentA) == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(int(LtPreferenceAttribute::kMinAlignmentB) == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
static_assert(int(LtPreferenceAttribute::kMinAlignmentC) == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
static_assert(int(LtPreferenceAttribute::kMinAlignmentD) == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);

static_assert(int(LtConfigAttribute::kId) == CUBLASLT_ALGO_CONFIG_ID);
static_assert(int(LtConfigAttribute::kTile) == CUBLASLT_ALGO_CONFIG_TILE_ID);
static_assert(int(LtConfigAttribute::kSplitK) == CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
static_assert(int(LtConfigAttribute::kReductionScheme) == CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
static_assert(int(LtConfigAttribute::kSwizzling) == CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING);
static_assert(int(LtConfigAttribute::kCustomOption) == CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION);
static_assert(int(LtConfigAttribute::kStages) == CUBLASLT_ALGO_CONFIG_STAGES_ID);
static_assert(int(LtConfigAttribute::kInnerShape) == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID);
static_assert(int(LtConfigAttribute::kClusterShape) == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID);

// A pointer to their function takes what a pointer of ours takes: the same number of arguments, of the same
// sizes.
template <class Ours, class Theirs>
constexpr bool kSameCall = false;
template <class R, class... A, class S, class... B>
constexpr bool kSameCall<R (*)(A...), S (*)(B...)> = [] {
  if constexpr (sizeof...(A) != sizeof...(B)) {
    return false;
  } else {
    return sizeof(R) == sizeof(S) && ((sizeof(A) == sizeof(B)) && ...) &&
           ((std::is_pointer_v<A> == std::is_pointer_v<B>)&&...);
  }
}();
static_assert(kSameCall<decltype(LtApi::create), decltype(&cublasLtCreate)>);
static_assert(kSameCall<decltype(LtApi::descriptor_create), decltype(&cublasLtMatmulDescCreate)>);
static_assert(kSameCall<decltype(LtApi::descriptor_set), decltype(&cublasLtMatmulDescSetAttribute)>);
static_assert(kSameCall<decltype(LtApi::layout_create), decltype(&cublasLtMatrixLayoutCreate)>);
static_assert(kSameCall<decltype(LtApi::preference_create), decltype(&cublasLtMatmulPreferenceCreate)>);
static_assert(kSameCall<decltype(LtApi::preference_set), decltype(&cublasLtMatmulPreferenceSetAttribute)>);
static_assert(kSameCall<decltype(LtApi::get_heuristic), decltype(&cublasLtMatmulAlgoGetHeuristic)>);
static_assert(kSameCall<decltype(LtApi::check), decltype(&cublasLtMatmulAlgoCheck)>);
static_assert(kSameCall<decltype(LtApi::config_get), decltype(&cublasLtMatmulAlgoConfigGetAttribute)>);
static_assert(kSameCall<decltype(LtApi::matmul), decltype(&cublasLtMatmul)>);

}  // namespace

TEST_CASE("the version of cuBLASLt's header is one that is taken") { CHECK(CUBLAS_VERSION >= 130000); }
#endif
