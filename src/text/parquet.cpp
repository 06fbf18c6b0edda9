#include "text/parquet.hpp"

#include <filesystem>

#include "base/files.hpp"
#include "base/shared_library.hpp"
#include "text/parquet_module.hpp"

namespace accord::text {
namespace {

using ReadFunction = decltype(&accord_parquet_read);

// Once loaded, the module stays: Arrow has threads of its own.
StatusOr<ReadFunction> load_module(const std::string& file) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path path = program.parent_path().parent_path() / "lib" / kParquetModule;
  constexpr std::string_view kRemedy = "run scripts/setup and build again, or convert the file to JSONL";
  if (!std::filesystem::exists(path, error)) {
    return recipe_error("{}: this program was built without Arrow C++ and reads no Parquet ({})", file,
                        kRemedy);
  }
  const auto refuse = [&](std::string_view reason) {
    return recipe_error("{}: cannot be read as Parquet: {} ({})", file, reason, kRemedy);
  };
  StatusOr<SharedLibrary> module = SharedLibrary::open({path.string()});
  if (!module.ok()) return refuse(message_of(module.status()));
  ReadFunction function = nullptr;
  module->find(kParquetFunction, function);
  if (function == nullptr) return refuse(fmt::format("{} has no {}", path.string(), kParquetFunction));
  return function;
}

struct Reading {
  const DataPath& path;
  const RecordVisitor& visit;
  Status status;

  bool part(int64_t rows, int64_t& first, int64_t& last) {
    const auto part = path.part_of(rows);
    status = part.status();
    if (part.ok()) {
      first = part->first;
      last = part->second;
    }
    return status.ok();
  }

  bool row(int64_t index, const char* json, size_t size, const char* error) {
    SourceRecord record{
        static_cast<uint64_t>(index), index + 1, fmt::format("{}:{}", path.file, index + 1),
        json == nullptr ? StatusOr<Json>(data_error("{}", printable(error))) : parse_json({json, size})};
    status = visit(record);
    return status.ok();
  }
};

Reading& reading(void* context) { return *static_cast<Reading*>(context); }

Status read(const DataPath& path, const char* data, size_t size, const std::vector<std::string>& keys,
            bool all, const RecordVisitor& visit) {
  ACCORD_ASSIGN_OR_RETURN(const ReadFunction read_rows, load_module(path.file));
  std::vector<const char*> names;
  names.reserve(keys.size());
  for (const std::string& key : keys) {
    names.push_back(key.c_str());
  }
  Reading state{path, visit, absl::OkStatus()};
  AccordParquetJob job{};
  job.file = path.file.c_str();
  job.data = data;
  job.size = size;
  job.keys = names.data();
  job.num_keys = names.size();
  job.all = all;
  job.context = &state;
  job.part = [](void* context, int64_t rows, int64_t* first, int64_t* last) {
    return reading(context).part(rows, *first, *last);
  };
  job.row = [](void* context, int64_t index, const char* json, size_t length, const char* error) {
    return reading(context).row(index, json, length, error);
  };
  job.fail = [](void* context, const char* error) {
    Reading& failed = reading(context);
    failed.status = data_error("{}: {}", failed.path.file, error);
  };
  read_rows(&job);
  return state.status;
}

}  // namespace

Status check_format(const DataPath& path) {
  return path.is_parquet() ? load_module(path.file).status() : absl::OkStatus();
}

Status for_each_parquet_record(const DataPath& path, const std::vector<std::string>& keys, bool all,
                               const RecordVisitor& visit) {
  // Opened here first, for the reason that the system gives.
  ACCORD_RETURN_IF_ERROR(MappedFile::open(path.file).status());
  return read(path, nullptr, 0, keys, all, visit);
}

Status for_each_parquet_record(std::string_view content, const DataPath& path,
                               const std::vector<std::string>& keys, bool all, const RecordVisitor& visit) {
  return read(path, content.data(), content.size(), keys, all, visit);
}

}  // namespace accord::text
