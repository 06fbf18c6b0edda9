// accord doctor: what this machine offers, and what of it this build can use.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "cli/commands.hpp"
#include "comm/nccl_api.hpp"
#include "device/device.hpp"
#include "kernels/block_scaled/cublaslt_api.hpp"

namespace accord::cli {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

struct Row {
  DeviceInfo info;
  std::string verdict;                // "usable", or why not
  std::optional<int64_t> free_bytes;  // of a usable one
};

std::vector<Row> rows_of(const std::vector<DeviceInfo>& devices) {
  std::vector<Row> rows;
  for (const DeviceInfo& info : devices) {
    const auto device = Device::open({DeviceKind::kCuda, static_cast<int>(rows.size())});
    const StatusOr<int64_t> free = device.ok() ? device->free_bytes() : device.status();
    if (free.ok()) {
      rows.push_back({info, "usable", *free});
    } else {
      rows.push_back({info, std::string(message_of(free.status())), std::nullopt});
    }
  }
  return rows;
}

// NCCL, which connects several devices: its version, or why there is none.
std::string nccl_text() {
  const StatusOr<comm::NcclApi> nccl = comm::nccl_of_this_build();
  return nccl.ok() ? nccl->origin : "none: " + std::string(message_of(nccl.status()));
}

// cuBLASLt, which multiplies quantized weights on Blackwell: its version, or why there is none.
std::string cublaslt_text() {
  const auto api = kernels::block_scaled::cublaslt_of_this_build();
  return api.ok() ? api->origin : "none: " + std::string(message_of(api.status()));
}

bool any_blackwell(const std::vector<Row>& rows) {
  constexpr int kMajor = 10;
  return std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.info.major == kMajor; });
}

void print_text(const std::vector<Row>& rows, const std::string& no_devices) {
  std::printf("%s\n", build_id().c_str());
  std::printf("cpu     %u threads\n", std::thread::hardware_concurrency());
  std::printf("driver  %s\n", cuda_driver_text().c_str());
  if (!no_devices.empty()) {
    std::printf("cuda    none: %s\n", no_devices.c_str());
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const DeviceInfo& info = rows[i].info;
    const double total = static_cast<double>(info.total_bytes) / kGiB;
    const std::string memory =
        rows[i].free_bytes
            ? fmt::format("{:.1f} of {:.1f} GiB free", static_cast<double>(*rows[i].free_bytes) / kGiB, total)
            : fmt::format("{:.1f} GiB", total);
    std::printf("cuda:%zu  %s, compute capability %d.%d, %d multiprocessors, %s, at %s: %s\n", i,
                info.name.c_str(), info.major, info.minor, info.num_multiprocessors, memory.c_str(),
                info.bus_id.c_str(), rows[i].verdict.c_str());
  }
  if (kBuiltWithCuda) {
    std::printf("nccl    %s\n", nccl_text().c_str());
  }
  if (any_blackwell(rows)) {
    std::printf("cublaslt %s\n", cublaslt_text().c_str());
  }
}

void print_json(const std::vector<Row>& rows, const std::string& no_devices) {
  nlohmann::ordered_json out;
  out["build"] = build_id();
  out["cpu_threads"] = std::thread::hardware_concurrency();
  out["cuda_driver"] = cuda_driver_text();
  out["cuda_devices"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < rows.size(); ++i) {
    const DeviceInfo& info = rows[i].info;
    out["cuda_devices"].push_back(
        {{"device", to_string({DeviceKind::kCuda, static_cast<int>(i)})},
         {"name", info.name},
         {"bus_id", info.bus_id},
         {"compute_capability", fmt::format("{}.{}", info.major, info.minor)},
         {"multiprocessors", info.num_multiprocessors},
         {"l2_bytes", info.l2_bytes},
         {"total_bytes", info.total_bytes},
         {"free_bytes",
          rows[i].free_bytes ? nlohmann::ordered_json(*rows[i].free_bytes) : nlohmann::ordered_json(nullptr)},
         {"usable", rows[i].free_bytes.has_value()},
         {"verdict", rows[i].verdict}});
  }
  if (kBuiltWithCuda) {
    out["nccl"] = nccl_text();
  }
  if (any_blackwell(rows)) {
    out["cublaslt"] = cublaslt_text();
  }
  if (!no_devices.empty()) {
    out["cuda_unavailable"] = no_devices;
  }
  std::printf("%s\n", out.dump(2).c_str());
}

Status doctor(const std::string& device, bool json) {
  const auto devices = list_cuda_devices();
  const std::string no_devices = devices.ok() ? "" : std::string(message_of(devices.status()));
  const std::vector<Row> rows = devices.ok() ? rows_of(*devices) : std::vector<Row>{};
  json ? print_json(rows, no_devices) : print_text(rows, no_devices);
  if (device.empty()) {
    return absl::OkStatus();
  }
  ACCORD_ASSIGN_OR_RETURN(const DeviceId id, parse_device(device));
  return Device::open(id).status();
}

}  // namespace

void add_doctor(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("doctor", "What devices this machine has, and which this build can use");
  auto device = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  command->add_option("--device", *device, "cpu or cuda:N: fail (exit code 69) if it cannot be used");
  command->add_flag("--json", *json, "Print JSON");
  command->callback([device, json, &action] { action = [device, json] { return doctor(*device, *json); }; });
}

}  // namespace accord::cli
