#include "base/shared_library.hpp"

#include <cstdlib>
#include <string>

#include "support/catch.hpp"

using namespace accord;

namespace {

constexpr CudaLibrary kAbsent{"NoSuch", "libaccord_no_such.so.1", "ACCORD_TEST_LIBRARY", "install it"};

bool has(const Status& status, std::string_view part) {
  return std::string_view(message_of(status)).find(part) != std::string_view::npos;
}

}  // namespace

TEST_CASE("shared library: the first file that loads is taken and its functions stay") {
  double (*cosine)(double) = nullptr;
  {
    StatusOr<SharedLibrary> library = SharedLibrary::open({"libaccord_no_such.so.1", "libm.so.6"});
    REQUIRE(library.ok());
    CHECK(library->file() == "libm.so.6");
    library->find("cos", cosine);
    CHECK(library->missing().empty());
    void (*absent)() = nullptr;
    library->find("accord_no_such_function", absent);
    library->find("accord_nor_this_one", absent);
    CHECK(absent == nullptr);
    CHECK(library->missing() == "accord_no_such_function");
  }
  REQUIRE(cosine != nullptr);
  CHECK(cosine(0.0) == 1.0);
}

TEST_CASE("shared library: an error has what was tried and the remedy") {
  ::unsetenv(kAbsent.variable);
  const Status absent = load(kAbsent).status();
  CHECK(exit_code(absent) == ExitCode::kUnavailable);
  CHECK(has(absent, "NoSuch is not here (libaccord_no_such.so.1: "));
  CHECK(has(absent, "; /usr/local/cuda/lib64/libaccord_no_such.so.1: "));
  CHECK(has(absent, "; /usr/local/cuda/lib/libaccord_no_such.so.1: "));
  CHECK(has(absent, "): install it"));
  CHECK(!is_off(kAbsent));
}

TEST_CASE("shared library: the variable names the file or is off") {
  ::setenv(kAbsent.variable, "libm.so.6", 1);
  const StatusOr<SharedLibrary> named = load(kAbsent);
  ::setenv(kAbsent.variable, "/nowhere/lib.so", 1);
  const Status wrong = load(kAbsent).status();
  ::setenv(kAbsent.variable, "off", 1);
  const Status off = load(kAbsent).status();
  CHECK(is_off(kAbsent));
  ::unsetenv(kAbsent.variable);
  REQUIRE(named.ok());
  CHECK(named->file() == "libm.so.6");
  CHECK(has(wrong, "(/nowhere/lib.so: "));
  CHECK(!has(wrong, "/usr/local/cuda"));
  CHECK(message_of(off) == "ACCORD_TEST_LIBRARY is off");
}

TEST_CASE("shared library: versions as CUDA's libraries number them") {
  CHECK(cuda_version_text(22809) == "2.28.9");
  CHECK(cuda_version_text(130100) == "13.1.0");
}
