// Where cuBLASLt comes from, what is said where it is not, and, on machines that have it, that its functions
// take what descriptors.cpp gives them: those need no device.
#include "kernels/block_scaled/cublaslt_api.hpp"

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "kernels/block_scaled/descriptors.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace accord::kernels::block_scaled;

namespace {

constexpr const char* kVariable = "ACCORD_CUBLASLT";

class Setting {
 public:
  explicit Setting(const char* value) {
    if (const char* old = std::getenv(kVariable)) old_ = old;
    setenv(kVariable, value, 1);
  }
  ~Setting() { old_ ? setenv(kVariable, old_->c_str(), 1) : unsetenv(kVariable); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  std::optional<std::string> old_;
};

std::string error_with(const char* value) {
  const Setting setting(value);
  const StatusOr<LtApi> api = load_cublaslt();
  REQUIRE(!api.ok());
  CHECK(exit_code(api.status()) == ExitCode::kUnavailable);
  return std::string(message_of(api.status()));
}

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("cublaslt: a missing library is named with the remedy") {
  const std::string missing = error_with("/nowhere/libcublasLt.so.13");
  CHECK(has(missing, "cuBLASLt is not here (/nowhere/libcublasLt.so.13"));
  CHECK(has(missing, "install libcublas of CUDA 13"));
  CHECK(has(missing, "in ACCORD_CUBLASLT;"));
  CHECK(has(missing, "ACCORD_CUBLASLT=off, for all workers of a run"));
  const std::string other = error_with("libm.so.6");
  CHECK(has(other, "libm.so.6 has no cublasLtGetVersion"));
  CHECK(has(other, "13.0.0 or later"));
}

TEST_CASE("cublaslt: off is off") {
  CHECK(has(error_with("off"), "ACCORD_CUBLASLT is off"));
  const Setting setting("off");
  CHECK(cublaslt_is_off());
}

TEST_CASE("cublaslt: the library takes the descriptors of both formats") {
  const StatusOr<LtApi> api = load_cublaslt();
  if (!api.ok()) {
    std::printf("SKIPPED: %s\n", std::string(message_of(api.status())).c_str());
    return;
  }
  for (const auto format : {WeightFormat::kMXFP8, WeightFormat::kNVFP4}) {
    const ProductShape shape{format, 64, 96};
    StatusOr<ProductDescriptors> descriptors = ProductDescriptors::create(*api, shape);
    INFO(std::string(message_of(descriptors.status())));
    REQUIRE(descriptors.ok());
    const uint8_t somewhere[32] = {};
    CHECK(descriptors->set_scales(somewhere, somewhere + 16).ok());
    CHECK(RowLayouts::create(*api, shape, 128).ok());
    // It does look: an attribute of another size is refused.
    const int64_t wide = 2;
    const auto mode = static_cast<int>(LtDescriptorAttribute::kAScaleMode);
    CHECK(api->descriptor_set(descriptors->operation(), mode, &wide, sizeof(wide)) == kLtInvalidValue);
  }
  CHECK(std::string(api->status_string(kLtNotSupported)) == "the requested functionality is not supported");
}
