#pragma once
// Rows in expert order, on any device (moe.hpp, moe_cuda.hpp): R = T*K rows, sorted by expert, then by token.
#include <cstdint>

namespace accord::kernels {

// Everything has R entries, but for expert_offsets [E+1].
struct ExpertOrder {
  int32_t* expert_offsets = nullptr;  // first sorted row of each expert
  int32_t* sorted_tokens = nullptr;   // token of each sorted row
  int32_t* sorted_slots = nullptr;    // its slot 0..K-1 in the token's top-k
  int32_t* slot_rows = nullptr;       // [T,K] the sorted row of each (token, slot)
};

}  // namespace accord::kernels
