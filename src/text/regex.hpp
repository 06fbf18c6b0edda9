#pragma once
// PCRE2 behind RAII: compiled once (with its JIT where the machine has one), shared by threads.
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"

namespace accord::text {

struct Match {
  size_t begin = 0;  // bytes
  size_t end = 0;
};

class Regex {
 public:
  // What one thread needs to match; reused over many calls.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class Regex;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  static StatusOr<Regex> compile_oniguruma(std::string_view pattern);  // as tokenizer.json spells it
  static StatusOr<Regex> compile(std::string_view pcre2_pattern);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Replaces `matches` by every match in valid UTF-8 `text`, from left to right. An empty match right after
  // another match is passed over. A pattern that backtracks without end is a data error.
  Status find_all(std::string_view text, Scratch& scratch, std::vector<Match>& matches) const;

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace accord::text
