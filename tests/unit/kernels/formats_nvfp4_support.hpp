#pragma once
// Runs of the NVFP4 quantizers as values, next to the model's.
#include <cstdint>
#include <vector>

#include "formats_model.hpp"
#include "kernels/formats/nvfp4.hpp"

namespace formats_nvfp4_support {

using accord::formats::FourOverSix;
using accord::formats::Nvfp4Layout;
using accord::formats::Nvfp4Options;
using accord::formats::Nvfp4Scope;
using accord::formats::QuantHealth;
using formats_model::Matrix;
using Bytes = formats_model::Nvfp4;

accord::MatrixView view(Matrix& m);

const std::vector<Nvfp4Options>& plain_options();          // both scopes, both layouts, no four over six
const std::vector<Nvfp4Options>& four_over_six_options();  // scopes and layouts times errors times ranges
const std::vector<Nvfp4Options>& all_options();
std::vector<Nvfp4Options> one_row_options();  // those of all_options() that take a single row

Bytes run(accord::MatrixView x, const Nvfp4Options& options, const float* shared_amax = nullptr,
          QuantHealth* health = nullptr);
Bytes run_reference(accord::MatrixView x, const Nvfp4Options& options, const float* shared_amax = nullptr,
                    QuantHealth* health = nullptr);
Bytes model(const Matrix& x, const Nvfp4Options& options, const float* shared_amax = nullptr,
            formats_model::Flaw flaw = formats_model::Flaw::kNone);

int64_t different(const Bytes& a, const Bytes& b);  // data, scale, amax and decoded values

}  // namespace formats_nvfp4_support
