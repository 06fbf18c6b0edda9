#pragma once
// The factories of the built-in scorers, one per file.
#include "reward/reward.hpp"

namespace accord::reward {

std::unique_ptr<Scorer> make_math_dapo();
std::unique_ptr<Scorer> make_math_dapo_integer();
std::unique_ptr<Scorer> make_math_boxed();
std::unique_ptr<Scorer> make_gsm8k();
std::unique_ptr<Scorer> make_gsm8k_flexible();
std::unique_ptr<Scorer> make_exact();

}  // namespace accord::reward
