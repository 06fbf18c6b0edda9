#pragma once
// Hints about ranges of a MappedFile (base/files.hpp). Neither changes a value, and a failure is no error.
#include <cstddef>

namespace accord {

void prefetch_mapped(const std::byte* data, size_t size);  // it is read soon
void release_mapped(const std::byte* data, size_t size);   // it need not stay resident

}  // namespace accord
