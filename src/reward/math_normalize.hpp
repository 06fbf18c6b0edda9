#pragma once
// The normal form of a short mathematical answer, as the MATH benchmark's evaluations use it (Lewkowycz et
// al., "Solving Quantitative Reasoning Problems with Language Models", appendix D.1): text after the last
// '=', without articles, units, spaces and LaTeX dressing; \frac12 -> \frac{1}{2}, \sqrt2 -> \sqrt{2}, 1,234
// -> 1234.
#include <span>
#include <string>
#include <string_view>

namespace accord::reward {

// `also_removed`: further texts to delete, after the built-in ones.
std::string normalize_math(std::string_view answer, std::span<const std::string_view> also_removed = {});

}  // namespace accord::reward
