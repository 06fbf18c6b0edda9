#pragma once
// Unicode Normalization Form C (UAX #15), as the Hugging Face tokenizers compute it.
#include <string>
#include <string_view>

#include "base/status.hpp"

namespace accord::text {

// `text` must be valid UTF-8. Linear but for sorting runs of combining marks. The tokenizers' normalizer
// knows Unicode 10: marks and compositions that later versions brought stay as they are.
StatusOr<std::string> nfc(std::string_view text);

}  // namespace accord::text
