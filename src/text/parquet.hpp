#pragma once
// Parquet files through Arrow C++, where the program was built with it.
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "text/data_path.hpp"
#include "text/record_source.hpp"

namespace accord::text {

// An error where the file is Parquet and this program was built without Arrow; it says what to do.
Status check_format(const DataPath& path);

// As for_each_record. Rows are read in batches, so memory is bounded by a batch of the columns that `keys`
// name.
Status for_each_parquet_record(const DataPath& path, const std::vector<std::string>& keys, bool all,
                               const RecordVisitor& visit);

// The same from memory; `path` stands for the file.
Status for_each_parquet_record(std::string_view content, const DataPath& path,
                               const std::vector<std::string>& keys, bool all, const RecordVisitor& visit);

}  // namespace accord::text
