#include "text/nfc.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "text/utf8.hpp"

namespace accord::text {
namespace {

constexpr uint32_t kFirstMark = 0x300;    // below, no character combines with the one before
constexpr size_t kMaxDecomposition = 32;  // Unicode's longest canonical decomposition has 4 characters
constexpr auto kDecompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
constexpr auto kCompose = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

struct Range {
  uint32_t first;
  uint32_t last;
};

// Characters newer than Unicode 10 that normalization moves, composes or decomposes. The reference passes
// them through, so models have never seen them in another order.
constexpr auto kInert = std::to_array<Range>({
    {0x7FD, 0x7FD},     {0x897, 0x897},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ADD},
    {0x1AE0, 0x1AEB},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x105C9, 0x105C9}, {0x105E4, 0x105E4},
    {0x10D24, 0x10D27}, {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC}, {0x10EFA, 0x10EFF}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x11380, 0x113E2}, {0x1145E, 0x1145E},
    {0x11839, 0x1183A}, {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943},
    {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16100, 0x1612F}, {0x16D40, 0x16D7F},
    {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF},
    {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF}, {0x1E6E3, 0x1E6F5},
});

bool is_inert(uint32_t code_point) {
  const auto* after = std::upper_bound(kInert.begin(), kInert.end(), code_point,
                                       [](uint32_t c, const Range& range) { return c < range.first; });
  return after != kInert.begin() && code_point <= (after - 1)->last;
}

int combining_class(int32_t code_point) { return utf8proc_get_property(code_point)->combining_class; }

// utf8proc's own ordering is quadratic in a run of marks; a stable sort is not.
void order_marks(std::vector<int32_t>& points) {
  const auto is_starter = [](int32_t c) { return combining_class(c) == 0; };
  auto run = points.begin();
  while ((run = std::find_if_not(run, points.end(), is_starter)) != points.end()) {
    const auto end = std::find_if(run, points.end(), is_starter);
    std::stable_sort(run, end, [](int32_t a, int32_t b) { return combining_class(a) < combining_class(b); });
    run = end;
  }
}

Status compose(std::vector<int32_t>& points, std::string& out) {
  if (points.size() == 1) {
    append_utf8(out, static_cast<uint32_t>(points[0]));
    points.clear();
  }
  if (points.empty()) {
    return absl::OkStatus();
  }
  order_marks(points);
  const auto count =
      utf8proc_normalize_utf32(points.data(), static_cast<utf8proc_ssize_t>(points.size()), kCompose);
  if (count < 0) {
    return internal_error("NFC: {}", utf8proc_errmsg(count));
  }
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    append_utf8(out, static_cast<uint32_t>(points[i]));
  }
  points.clear();
  return absl::OkStatus();
}

}  // namespace

StatusOr<std::string> nfc(std::string_view text) {
  std::string out;
  std::vector<int32_t> points;  // decomposed characters since the last one that nothing crosses
  out.reserve(text.size());
  std::array<int32_t, kMaxDecomposition> buffer;
  int unused_grapheme_state = 0;
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = next_utf8(text, i);
    i += step.length;
    const bool inert = is_inert(step.code_point);
    if (inert || step.code_point < kFirstMark) {
      ACCORD_RETURN_IF_ERROR(compose(points, out));
    }
    if (inert) {
      append_utf8(out, step.code_point);
      continue;
    }
    const auto count = utf8proc_decompose_char(static_cast<int32_t>(step.code_point), buffer.data(),
                                               buffer.size(), kDecompose, &unused_grapheme_state);
    if (count < 0 || static_cast<size_t>(count) > buffer.size()) {
      return internal_error("NFC of U+{:04X}: {}", step.code_point, utf8proc_errmsg(count));
    }
    points.insert(points.end(), buffer.begin(), buffer.begin() + count);
  }
  ACCORD_RETURN_IF_ERROR(compose(points, out));
  return out;
}

}  // namespace accord::text
