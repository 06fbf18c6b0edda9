#pragma once
// The boundary to lib/libaccord_parquet.so, which holds all that needs Arrow C++ and is loaded when the first
// Parquet file is read: Arrow's libraries export symbols of other libraries (OpenSSL) that must not get among
// the program's own. Rows cross as JSON text, so both sides share nothing but this struct.
#include <cstddef>
#include <cstdint>

extern "C" {

struct AccordParquetJob {
  const char* file;
  const char* data;         // the file's content; null: it is read from `file`
  size_t size;              // of `data`
  const char* const* keys;  // columns, or dotted paths into them; the first must be there
  size_t num_keys;
  bool all;       // the other columns are read, too
  void* context;  // for the functions below
  // Told the number of rows, says which are wanted: [first, last). Like `row`, ends the job by returning
  // false.
  bool (*part)(void* context, int64_t rows, int64_t* first, int64_t* last);
  // A row by its index: an object as JSON, or, where `json` is null, why there is none.
  bool (*row)(void* context, int64_t index, const char* json, size_t size, const char* error);
  void (*fail)(void* context, const char* error);  // the file cannot be read (on)
};

void accord_parquet_read(const AccordParquetJob* job);  // throws nothing

}  // extern "C"

namespace accord::text {

inline constexpr char kParquetModule[] = "libaccord_parquet.so";
inline constexpr char kParquetFunction[] = "accord_parquet_read";

}  // namespace accord::text
