#include "base/shared_library.hpp"

#include <dlfcn.h>

#include <cstdlib>

namespace accord {
namespace {

std::string_view asked(const CudaLibrary& library) {
  const char* const value = std::getenv(library.variable);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

std::vector<std::string> files_of(const CudaLibrary& library) {
  if (const std::string_view file = asked(library); !file.empty()) return {std::string(file)};
  return {library.file, fmt::format("/usr/local/cuda/lib64/{}", library.file),
          fmt::format("/usr/local/cuda/lib/{}", library.file)};
}

}  // namespace

void SharedLibrary::Close::operator()(void* handle) const { ::dlclose(handle); }

StatusOr<SharedLibrary> SharedLibrary::open(const std::vector<std::string>& files) {
  std::string tried;
  for (const std::string& file : files) {
    SharedLibrary library;
    library.handle_.reset(::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE));
    if (library.handle_ != nullptr) {
      library.file_ = file;
      return library;
    }
    const char* const why = ::dlerror();
    tried += fmt::format("{}{}", tried.empty() ? "" : "; ", why != nullptr ? why : file.c_str());
  }
  return unavailable_error("{}", tried);
}

void* SharedLibrary::address(const char* name) {
  void* const function = ::dlsym(handle_.get(), name);
  if (function == nullptr && missing_.empty()) missing_ = name;
  return function;
}

bool is_off(const CudaLibrary& library) { return asked(library) == "off"; }

StatusOr<SharedLibrary> load(const CudaLibrary& library) {
  if (is_off(library)) return unavailable_error("{} is off", library.variable);
  StatusOr<SharedLibrary> found = SharedLibrary::open(files_of(library));
  if (found.ok()) return found;
  return unavailable_error("{} is not here ({}): {}", library.name, message_of(found.status()),
                           library.remedy);
}

std::string cuda_version_text(int64_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace accord
