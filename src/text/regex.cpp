#include "text/regex.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <utility>

#include "text/pattern.hpp"
#include "text/utf8.hpp"

namespace accord::text {
namespace {

template <auto kFree>
struct Deleter {
  template <class T>
  void operator()(T* p) const {
    kFree(p);
  }
};
using CodePtr = std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>>;
using MatchDataPtr = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;
using MatchContextPtr = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;
using CompileContextPtr = std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>>;
using JitStackPtr = std::unique_ptr<pcre2_jit_stack, Deleter<pcre2_jit_stack_free>>;

constexpr size_t kJitStackStart = 64 << 10;
constexpr size_t kJitStackMax = 64 << 20;
constexpr uint32_t kHeapLimitKib = 256 << 10;
constexpr uint32_t kMinMatchLimit = 10'000'000;  // PCRE2's own default
constexpr size_t kMatchLimitPerByte = 64;
constexpr size_t kMaxMatchLimit = 2'000'000'000;

std::string error_text(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

struct Regex::Code {
  CodePtr code;
};

struct Regex::Scratch::Impl {
  MatchDataPtr data{pcre2_match_data_create(1, nullptr)};
  MatchContextPtr context{pcre2_match_context_create(nullptr)};
  JitStackPtr stack{pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr)};
};

Regex::Scratch::Scratch() : impl_(std::make_unique<Impl>()) {
  if (!impl_->data || !impl_->context) {
    throw std::bad_alloc();
  }
  pcre2_set_heap_limit(impl_->context.get(), kHeapLimitKib);
  if (impl_->stack) {
    pcre2_jit_stack_assign(impl_->context.get(), nullptr, impl_->stack.get());
  }
}
Regex::Scratch::~Scratch() = default;

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

StatusOr<Regex> Regex::compile_oniguruma(std::string_view pattern) {
  ACCORD_ASSIGN_OR_RETURN(const std::string translated, to_pcre2(pattern));
  return compile(translated);
}

StatusOr<Regex> Regex::compile(std::string_view pattern) {
  const CompileContextPtr context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_unique<Code>();
  code->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 PCRE2_UTF | PCRE2_UCP, &error, &offset, context.get()));
  if (!code->code) {
    return data_error("{} (at byte {} of the pattern '{}')", error_text(error), offset, pattern);
  }
  // Without a JIT for this machine pcre2_match interprets: the same matches, slower.
  pcre2_jit_compile(code->code.get(), PCRE2_JIT_COMPLETE);
  return Regex(std::move(code));
}

Status Regex::find_all(std::string_view text, Scratch& scratch, std::vector<Match>& matches) const {
  matches.clear();
  pcre2_match_data* data = scratch.impl_->data.get();
  const size_t limit = std::clamp<size_t>(text.size() * kMatchLimitPerByte, kMinMatchLimit, kMaxMatchLimit);
  pcre2_set_match_limit(scratch.impl_->context.get(), static_cast<uint32_t>(limit));
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t position = 0;
  size_t last_end = std::string_view::npos;
  while (position <= text.size()) {
    const int count = pcre2_match(code_->code.get(), subject, text.size(), position, PCRE2_NO_UTF_CHECK, data,
                                  scratch.impl_->context.get());
    if (count == PCRE2_ERROR_NOMATCH) {
      return absl::OkStatus();
    }
    if (count < 0) {
      return data_error("a regular expression of the tokenizer gave up on this text: {}", error_text(count));
    }
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data);
    const Match match{bounds[0], bounds[1]};
    if (match.begin == match.end && match.end == last_end) {
      position += position < text.size() ? next_utf8(text, position).length : 1;
      continue;
    }
    position = last_end = match.end;
    matches.push_back(match);
  }
  return absl::OkStatus();
}

}  // namespace accord::text
