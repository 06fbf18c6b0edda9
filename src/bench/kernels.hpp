#pragma once
// Every kernel beside the ceilings of the same run.
#include <functional>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "bench/shapes.hpp"
#include "bench/table.hpp"
#include "device/device.hpp"

namespace accord::bench {

struct KernelOptions {
  Device device;
  std::string op;                   // one of kernel_names(); empty: all
  bool decode = false;              // on a device: the tables of decode steps alone
  std::vector<std::string> shapes;  // find_shape; empty: two that suit the device
};

struct KernelReport {
  std::string device;
  std::string note;  // what the figures are worth; may be empty
  Ceilings ceilings;
  std::vector<Table> tables;
};

// Text as it becomes known.
using Print = std::function<void(const std::string& text)>;

// The kernels that `op` may name: folders of kernels/.
const std::vector<std::string>& kernel_names(bool cuda);

// Errors: usage (an unknown operation or shape), a shape that the kernels do not take, memory.
StatusOr<KernelReport> run_kernels(const KernelOptions& options, const Print& print);

}  // namespace accord::bench
