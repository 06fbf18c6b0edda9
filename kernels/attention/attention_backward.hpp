#pragma once
// Backward of causal attention over one whole sequence (n rows, positions 0..n-1), one key/value head at a
// time. With s = scale * q k^T, p = exp(s - lse) (0 above the diagonal), o = p v:
//   dv = p^T do;   dp = do v^T;   ds = p * (dp - rowsum(do * o)) * scale;   dq = ds k;   dk = ds^T q
// The query heads of a group add to dk and dv in ascending order; within a head, key tiles outer and query
// tiles inner, both ascending: the order of every sum depends on n and the head size alone.
#include <cstdint>

#include "device/tensor_view.hpp"

namespace accord::kernels {

struct AttentionBackward {
  MatrixView q_NQ;  // after norm and rotary; fp32 or bf16, as are k, v, out
  MatrixView k_NC;  // after norm and rotary
  MatrixView v_NC;
  MatrixView out_NQ;               // the forward's result
  const float* lse = nullptr;      // [n, heads], contiguous: log-sum-exp of the scaled scores
  const float* dout_NQ = nullptr;  // contiguous fp32
  float* dq_NQ = nullptr;          // contiguous fp32, overwritten (the columns of this group's heads)
  float* dk_NC = nullptr;          // contiguous fp32, overwritten (the columns of this head)
  float* dv_NC = nullptr;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;    // of q and k
  int64_t v_head_dim = 0;  // of v, out and dout; 0: head_dim
  float scale = 1.0F;
};

int64_t attention_backward_scratch(int64_t num_rows, int64_t head_dim);  // in floats; the wider of the two

// `scratch` is 32-byte aligned.
void attention_backward(const AttentionBackward& args, int64_t kv_head, float* scratch);

}  // namespace accord::kernels
