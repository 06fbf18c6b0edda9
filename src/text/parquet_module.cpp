// Compiled into lib/libaccord_parquet.so alone, with ACCORD_ARROW.
#ifdef ACCORD_ARROW

#include "text/parquet_module.hpp"

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/io/memory.h>
#include <parquet/arrow/reader.h>
#include <parquet/properties.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using Json = nlohmann::ordered_json;
using arrow::Type;
using Problem = std::runtime_error;

constexpr int64_t kBatchRows = 1024;
constexpr int64_t kPageBuffer = 1 << 20;          // bytes of a column that are read at once
constexpr int64_t kMaxMemory = int64_t{4} << 30;  // a damaged file may ask for any amount

void check(const arrow::Status& status) {
  if (!status.ok()) {
    throw Problem("not readable as Parquet: " + status.message());
  }
}

template <class T>
T checked(arrow::Result<T> result) {
  check(result.status());
  return *std::move(result);
}

template <class Array>
const Array& as(const arrow::Array& array) {
  return static_cast<const Array&>(array);
}

Json real_json(double value) {
  if (!std::isfinite(value)) {
    throw Problem(std::isnan(value) ? "a number is NaN" : "a number is infinite");
  }
  return value;
}

Json value_json(const arrow::Array& array, int64_t row);

template <class List>
Json list_json(const List& list, int64_t row) {
  Json json = Json::array();
  for (int64_t i = list.value_offset(row); i < list.value_offset(row + 1); ++i) {
    json.push_back(value_json(*list.values(), i));
  }
  return json;
}

Json struct_json(const arrow::StructArray& object, int64_t row) {
  Json json = Json::object();
  for (int i = 0; i < object.num_fields(); ++i) {
    json[object.struct_type()->field(i)->name()] = value_json(*object.field(i), row);
  }
  return json;
}

Json value_json(const arrow::Array& array, int64_t row) {
  if (array.IsNull(row)) {
    return nullptr;
  }
  switch (array.type_id()) {
    case Type::BOOL:
      return as<arrow::BooleanArray>(array).Value(row);
    case Type::INT8:
      return as<arrow::Int8Array>(array).Value(row);
    case Type::INT16:
      return as<arrow::Int16Array>(array).Value(row);
    case Type::INT32:
      return as<arrow::Int32Array>(array).Value(row);
    case Type::INT64:
      return as<arrow::Int64Array>(array).Value(row);
    case Type::UINT8:
      return as<arrow::UInt8Array>(array).Value(row);
    case Type::UINT16:
      return as<arrow::UInt16Array>(array).Value(row);
    case Type::UINT32:
      return as<arrow::UInt32Array>(array).Value(row);
    case Type::UINT64:
      return as<arrow::UInt64Array>(array).Value(row);
    case Type::FLOAT:
      return real_json(double{as<arrow::FloatArray>(array).Value(row)});
    case Type::DOUBLE:
      return real_json(as<arrow::DoubleArray>(array).Value(row));
    case Type::STRING:
      return as<arrow::StringArray>(array).GetString(row);
    case Type::LARGE_STRING:
      return as<arrow::LargeStringArray>(array).GetString(row);
    case Type::STRING_VIEW:
      return as<arrow::StringViewArray>(array).GetString(row);
    case Type::DICTIONARY: {
      const auto& dictionary = as<arrow::DictionaryArray>(array);
      return value_json(*dictionary.dictionary(), dictionary.GetValueIndex(row));
    }
    case Type::LIST:
      return list_json(as<arrow::ListArray>(array), row);
    case Type::LARGE_LIST:
      return list_json(as<arrow::LargeListArray>(array), row);
    case Type::FIXED_SIZE_LIST:
      return list_json(as<arrow::FixedSizeListArray>(array), row);
    case Type::STRUCT:
      return struct_json(as<arrow::StructArray>(array), row);
    default:
      throw Problem("values of the type " + array.type()->ToString() + " are not read");
  }
}

std::string row_json(const arrow::RecordBatch& batch, int64_t row) {
  Json json = Json::object();
  for (int i = 0; i < batch.num_columns(); ++i) {
    try {
      json[batch.column_name(i)] = value_json(*batch.column(i), row);
    } catch (const Problem& problem) {
      throw Problem(batch.column_name(i) + ": " + problem.what());
    }
  }
  return json.dump();
}

bool leads_to(std::string_view leaf, std::string_view key) {
  return leaf == key || (leaf.starts_with(key) && leaf[key.size()] == '.');
}

// The leaf columns that hold what the keys name.
std::vector<int> find_columns(const parquet::SchemaDescriptor& schema, const AccordParquetJob& job) {
  std::vector<int> columns;
  std::string names;
  bool has_first = false;
  for (int i = 0; i < schema.num_columns(); ++i) {
    const std::string leaf = schema.Column(i)->path()->ToDotString();
    bool wanted = job.all;
    for (size_t k = 0; k < job.num_keys; ++k) {
      if (leads_to(leaf, job.keys[k])) {
        has_first = has_first || k == 0;
        wanted = true;
      }
    }
    if (wanted) {
      columns.push_back(i);
    }
    if (names.size() < 200) {
      names += (i > 0 ? ", '" : "'") + leaf + "'";
    }
  }
  if (!has_first) {
    throw Problem("the column '" + std::string(job.keys[0]) + "' is missing; the file has " + names);
  }
  return columns;
}

class Reader {
 public:
  explicit Reader(const AccordParquetJob& job) : job_(job) {}

  void read() {
    open();
    const int64_t rows = metadata().num_rows();
    if (rows <= 0) {
      throw Problem("has no records");
    }
    if (!job_.part(job_.context, rows, &first_, &last_)) {
      return;
    }
    const std::vector<int> columns = find_columns(*metadata().schema(), job_);
    for (int group = 0; group < metadata().num_row_groups(); ++group) {
      const int64_t end = row_ + metadata().RowGroup(group)->num_rows();
      if (row_ < last_ && end > first_ && !read_group(group, columns, end)) {
        return;
      }
      row_ = end;
    }
    if (row_ != rows) {
      throw Problem("not readable as Parquet: the row groups do not hold as many rows as the file says");
    }
  }

 private:
  const parquet::FileMetaData& metadata() const { return *reader_->parquet_reader()->metadata(); }

  void open() {
    std::shared_ptr<arrow::io::RandomAccessFile> input;
    if (job_.data != nullptr) {
      input = std::make_shared<arrow::io::BufferReader>(
          arrow::Buffer::FromString(std::string(job_.data, job_.size)));
    } else {
      input = checked(arrow::io::ReadableFile::Open(job_.file));
    }
    parquet::ReaderProperties properties(&pool_);
    properties.enable_buffered_stream();
    properties.set_buffer_size(kPageBuffer);
    parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/false);
    arrow_properties.set_batch_size(kBatchRows);
    arrow_properties.set_pre_buffer(false);
    parquet::arrow::FileReaderBuilder builder;
    check(builder.Open(std::move(input), properties));
    builder.memory_pool(&pool_)->properties(arrow_properties);
    reader_ = checked(builder.Build());
  }

  // False where the job ends.
  bool read_group(int group, const std::vector<int>& columns, int64_t end) {
    const auto batches = checked(reader_->GetRecordBatchReader({group}, columns));
    std::shared_ptr<arrow::RecordBatch> batch;
    for (int64_t row = row_; row < std::min(end, last_);) {
      check(batches->ReadNext(&batch));
      if (batch == nullptr) {
        throw Problem("not readable as Parquet: a row group ends before its last row");
      }
      check(batch->ValidateFull());
      for (int64_t i = 0; i < batch->num_rows(); ++i, ++row) {
        if (row >= first_ && row < last_ && !give(*batch, i, row)) {
          return false;
        }
      }
    }
    return true;
  }

  bool give(const arrow::RecordBatch& batch, int64_t i, int64_t row) const {
    std::string json;
    try {
      json = row_json(batch, i);
    } catch (const Json::exception&) {
      return job_.row(job_.context, row, nullptr, 0, "a text is not UTF-8");
    } catch (const Problem& problem) {
      return job_.row(job_.context, row, nullptr, 0, problem.what());
    }
    return job_.row(job_.context, row, json.data(), json.size(), nullptr);
  }

  const AccordParquetJob& job_;
  arrow::CappedMemoryPool pool_{arrow::default_memory_pool(), kMaxMemory};
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  int64_t first_ = 0;
  int64_t last_ = 0;
  int64_t row_ = 0;  // the next group's first
};

}  // namespace

void accord_parquet_read(const AccordParquetJob* job) {
  try {
    Reader(*job).read();
  } catch (const std::exception& error) {
    job->fail(job->context, error.what());
  }
}

#endif
