// Parquet from anywhere. Arrow itself is not instrumented; what it gives to this program is.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/parquet.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace accord::text;
  const std::vector<std::string> keys = {"prompt", "label", "reward_model.ground_truth", "half", "real"};
  for (const DataPath& path : {DataPath{"fuzz.parquet", {}, {}}, DataPath{"fuzz.parquet", 3, -2}}) {
    int64_t left = 10'000;  // a few bytes may stand for any number of equal rows
    (void)for_each_parquet_record({reinterpret_cast<const char*>(data), size}, path, keys, path.is_slice(),
                                  [&](SourceRecord& record) {
                                    (void)record.json.ok();
                                    return --left > 0 ? absl::OkStatus() : accord::data_error("enough");
                                  });
  }
  return 0;
}
