#pragma once
// Strict reading of a mapping: every key is asked for by name, with its type and range; what nobody asked for
// is unknown. Errors are collected, never thrown, so that one run reports them all.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "recipe/names.hpp"
#include "recipe/node.hpp"

namespace accord::recipe {

struct Problem {
  Location location;
  std::string path;  // key.path; empty: the whole document
  std::string rule;  // what is wrong, and (in brackets) what to do
};

// What reading leaves behind: problems, and where each key that was written stands.
class Findings {
 public:
  void add(Location location, std::string path, std::string rule);
  void remember(std::string path, Location location);
  Location location_of(std::string_view path) const;  // of the nearest written ancestor otherwise
  bool wrote(std::string_view path) const { return locations_.find(path) != locations_.end(); }
  const std::vector<Problem>& problems() const { return problems_; }

 private:
  std::vector<Problem> problems_;
  std::map<std::string, Location, std::less<>> locations_;
};

// "file:line:column: key.path: rule" for the file, "--set argument: key.path: rule" for an override.
std::string describe(const Problem& problem, const std::vector<std::string>& sources);

// All problems as one error, a line each, in the order in which they were written.
Status to_status(std::vector<Problem> problems, const std::vector<std::string>& sources);

struct RealRange {
  double min;
  double max;
  bool min_excluded = false;
};

class MapReader {
 public:
  // `node` may be null: then every key is absent. A node that is no mapping is reported and read as empty;
  // null
  // (`data:` with nothing after it) counts as an empty mapping.
  MapReader(Node* node, std::string path, Findings& findings);
  // Reports what nobody asked for; call once, last.
  void finish();

  bool has(std::string_view key) const;  // written, also as null
  bool present() const { return node_ != nullptr; }
  std::string path_of(std::string_view key) const;
  Findings& findings() { return findings_; }

  // Absent keys leave `out` as it is.
  void text(std::string_view key, std::string& out);  // not empty
  void optional_text(std::string_view key, std::optional<std::string>& out);
  void boolean(std::string_view key, bool& out);
  void integer(std::string_view key, int64_t& out, int64_t min, int64_t max);
  void natural(std::string_view key, uint64_t& out);
  void real(std::string_view key, double& out, RealRange range);
  void real_list(std::string_view key, std::vector<double>& out, size_t size, RealRange range);
  void text_list(std::string_view key, std::vector<std::string>& out);
  void json_object(std::string_view key, std::string& out);  // a mapping with any values, as JSON
  template <class E>
  void choice(std::string_view key, E& out) {
    std::vector<std::string_view> words;
    for (const auto& entry : Names<E>::table) {
      words.push_back(entry.first);
    }
    if (const auto index = choose(key, words)) {
      out = Names<E>::table[*index].second;
    }
  }
  std::optional<size_t> choose(std::string_view key, const std::vector<std::string_view>& words);
  void require(std::string_view key, std::string_view remedy);  // must be written

  // The value itself, for parts with a shape of their own. Null where it is absent.
  Node* raw(std::string_view key);
  MapReader map(std::string_view key) { return {raw(key), path_of(key), findings_}; }
  void fail(std::string_view key, std::string rule);  // at the key's value, else at this mapping

 private:
  Node* scalar(std::string_view key, std::string_view expected);

  Node* node_ = nullptr;
  std::string path_;
  Findings& findings_;
  std::vector<std::string> asked_;
};

// The word of `known` nearest to `word`, when it is near enough to be a slip of the pen.
std::optional<std::string> nearest(std::string_view word, const std::vector<std::string>& known);

// Strict numbers: decimal only, no surrounding space, the whole text.
std::optional<int64_t> parse_integer(std::string_view text);
std::optional<double> parse_real(std::string_view text);  // finite

}  // namespace accord::recipe
