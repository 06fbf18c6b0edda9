#pragma once
// Shared libraries that are loaded when they are first needed: the program runs where there are none.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"

namespace accord {

// A handle of a library. What it loaded stays in the process after the handle is gone, and functions found in
// it stay valid: such libraries have threads and devices of their own.
class SharedLibrary {
 public:
  // The first of `files` that the dynamic linker takes. Errors: kUnavailable, with what it said of each.
  static StatusOr<SharedLibrary> open(const std::vector<std::string>& files);

  const std::string& file() const { return file_; }

  // Sets `to` to the function of this name, whose type is the caller's word; null where there is none, which
  // `missing` then names.
  template <class Function>
  void find(const char* name, Function*& to) {
    to = reinterpret_cast<Function*>(address(name));
  }
  // The first function that was not found; empty: all were.
  const std::string& missing() const { return missing_; }

 private:
  struct Close {
    void operator()(void* handle) const;
  };
  void* address(const char* name);

  std::unique_ptr<void, Close> handle_;
  std::string file_;
  std::string missing_;
};

// A library of CUDA that users name in an environment variable.
struct CudaLibrary {
  const char* name;      // "NCCL": in messages
  const char* file;      // "libnccl.so.2"
  const char* variable;  // "ACCORD_NCCL"
  const char* remedy;    // where it is not there: "install libnccl2 for this CUDA, or ..."
};

// Whether the variable is "off".
bool is_off(const CudaLibrary& library);

// The file that the variable names, else the file as the dynamic linker finds it, else the CUDA toolkit's.
// Errors: kUnavailable, with what was tried and the remedy; also where it is off.
StatusOr<SharedLibrary> load(const CudaLibrary& library);

// "2.28.9" of 22809.
std::string cuda_version_text(int64_t version);

}  // namespace accord
