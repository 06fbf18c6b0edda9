// A shard index, and the manifest of a run checkpoint: parsed or refused; no name leaves the directory.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "checkpoint/run_checkpoint.hpp"
#include "checkpoint/sharded_tensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace accord::checkpoint;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto files = parse_safetensors_index(text, "index.json");
  if (files.ok()) {
    for (const auto& [name, file] : *files) {
      if (file.find('/') != std::string::npos) {
        std::abort();
      }
    }
  }
  const auto manifest = parse_manifest(text, "manifest.json");
  if (manifest.ok()) {
    for (const auto& [name, entry] : manifest->files) {
      if (name.front() == '/' || name.rfind("../", 0) == 0 || name.find("/../") != std::string::npos) {
        std::abort();
      }
    }
  }
  return 0;
}
