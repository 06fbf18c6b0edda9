#pragma once
// TensorBoard event files with scalars, written without TensorFlow or protobuf.
//
// File: TFRecords, each [u64 length][u32 masked crc of the length][bytes][u32 masked crc of the bytes],
// little endian, crc = CRC-32C, masked = rotate_right(crc, 15) + 0xa282ead8. The bytes are a protobuf Event:
//   1 wall_time double, 2 step int64, 3 file_version string, 5 summary{1 value{1 tag, 2 simple_value float}},
//   7 session_log{1 status}
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/files.hpp"
#include "base/flow.hpp"
#include "base/status.hpp"

namespace accord::telemetry {

uint32_t crc32c(std::string_view bytes);
uint32_t masked_crc32c(std::string_view bytes);
std::string tf_record(std::string_view payload);

// Encoded Event messages. `wall_time`: seconds since 1970.
std::string encode_file_version(double wall_time);
std::string encode_session_start(double wall_time, int64_t step);
std::string encode_scalars(double wall_time, int64_t step, const Metrics& metrics);

class TensorBoardWriter {
 public:
  // Creates DIR/events.out.tfevents.<time>.<host>.<pid>. With `first_step` > 0 (a resumed run) a session
  // start tells TensorBoard to forget what earlier files hold for this and later steps. Errors: kIo.
  static StatusOr<std::unique_ptr<TensorBoardWriter>> create(const std::string& dir, int64_t first_step);

  // One event with all metrics, as fp32; non-finite values are written as they are. Errors: kIo.
  Status write(int64_t step, const Metrics& metrics);
  const std::string& path() const { return path_; }

 private:
  TensorBoardWriter(std::string path, FileDescriptor fd);

  std::string path_;
  FileDescriptor fd_;
};

}  // namespace accord::telemetry
