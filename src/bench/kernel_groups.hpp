#pragma once
// The tables of run_kernels. Inside of this room.
#include <vector>

#include "bench/kernels.hpp"

namespace accord::bench {

struct KernelRun {
  const KernelOptions& options;
  std::vector<Shape> shapes;
  const Print& print;
  KernelReport& report;

  // Keeps and prints a table that has anything in it.
  void finish(Table table) const;
};

void run_device_kernels(const KernelRun& run);
void run_cpu_kernels(const KernelRun& run);

}  // namespace accord::bench
