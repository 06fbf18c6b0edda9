#pragma once
// cuBLASLt's functions for block-scaled products over host memory or emulated devices, as strict as its
// documentation: what a descriptor does not say, or says wrongly, is an error of the call. The product is the
// reference of products.hpp: decoded values (docs/contract.md, sections 2 to 4), exact products added in fp32
// in ascending K, times alpha, rounded once to the type of D.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernels/block_scaled/cublaslt_api.hpp"

namespace accord::testing {

// What a test sees and sets, of this process.
struct LtRecord {
  struct Call {
    int64_t rows = 0;  // of x
    int64_t n = 0;
    int64_t k = 0;
    int32_t operand_type = 0;
    int32_t result_type = 0;
    int32_t scale_mode = 0;
    uint64_t algorithm = 0;
    const void* d = nullptr;
  };
  std::vector<Call> calls;
  int heuristics = 0;  // asked
  int live = 0;        // descriptors, layouts, preferences and contexts that were not destroyed
};
struct LtFaults {
  bool create_fails = false;
  bool only_split = false;     // the heuristic knows algorithms that split K only
  bool not_supported = false;  // the heuristic
  bool few_rows_only = false;  // no algorithm takes more rows than it was asked about
  int first_algorithm = 1;     // its number: another library would choose another one
};

kernels::block_scaled::LtApi fake_cublaslt();
LtRecord& lt_record();
void set_faults(const LtFaults& faults);  // and an empty record

// Where `bytes` of a pointer that a product was given lie, for a product on `stream`; the process's own
// memory unless set. It ends the process where the memory is not the device's.
using LtMemory = std::function<void*(const void* p, size_t bytes, StreamHandle stream)>;
void set_memory(LtMemory memory);

}  // namespace accord::testing
