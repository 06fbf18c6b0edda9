#include "formats_nvfp4_support.hpp"

#include "formats_inputs.hpp"

namespace formats_nvfp4_support {
namespace {

using accord::MatrixView;
using formats_inputs::count_different;

struct Kind {
  Nvfp4Scope scope;
  Nvfp4Layout layout;
};
constexpr Kind kKinds[] = {{Nvfp4Scope::kTensor, Nvfp4Layout::k1x16},
                           {Nvfp4Scope::kToken, Nvfp4Layout::k1x16},
                           {Nvfp4Scope::kTensor, Nvfp4Layout::k16x16}};

template <class Quantize>
Bytes run_with(Quantize quantize, MatrixView x, const Nvfp4Options& options, const float* shared_amax,
               QuantHealth* health) {
  const auto elements = static_cast<size_t>(x.rows * x.cols);
  Bytes out;
  out.q.assign(elements / 2, 0x55);
  out.scale.assign(elements / 16, 0x55);
  out.amax.assign(options.scope == Nvfp4Scope::kToken ? static_cast<size_t>(x.rows) : 1, -1.0F);
  out.decoded.resize(elements);
  quantize(x, options, accord::formats::Nvfp4Output{out.q.data(), out.scale.data(), out.amax.data()},
           shared_amax, health);
  accord::formats::dequantize_nvfp4(out.q.data(), out.scale.data(), out.amax.data(), x.rows, x.cols,
                                    options.scope, options.range, out.decoded.data());
  return out;
}

}  // namespace

MatrixView view(Matrix& m) { return accord::matrix_view(m.x.data(), m.rows, m.cols); }

const std::vector<Nvfp4Options>& plain_options() {
  static const std::vector<Nvfp4Options> options = [] {
    std::vector<Nvfp4Options> list;
    for (const Kind& kind : kKinds) {
      list.push_back({kind.scope, kind.layout, FourOverSix::kNone, 448});
    }
    return list;
  }();
  return options;
}

const std::vector<Nvfp4Options>& four_over_six_options() {
  static const std::vector<Nvfp4Options> options = [] {
    std::vector<Nvfp4Options> list;
    for (const Kind& kind : kKinds) {
      for (FourOverSix mode : {FourOverSix::kMae, FourOverSix::kMse}) {
        for (int range : {448, 256}) {
          list.push_back({kind.scope, kind.layout, mode, range});
        }
      }
    }
    return list;
  }();
  return options;
}

const std::vector<Nvfp4Options>& all_options() {
  static const std::vector<Nvfp4Options> options = [] {
    std::vector<Nvfp4Options> list = plain_options();
    list.insert(list.end(), four_over_six_options().begin(), four_over_six_options().end());
    return list;
  }();
  return options;
}

std::vector<Nvfp4Options> one_row_options() {
  std::vector<Nvfp4Options> list;
  for (const Nvfp4Options& options : all_options()) {
    if (options.layout == Nvfp4Layout::k1x16) {
      list.push_back(options);
    }
  }
  return list;
}

Bytes run(MatrixView x, const Nvfp4Options& options, const float* shared_amax, QuantHealth* health) {
  return run_with(accord::formats::quantize_nvfp4, x, options, shared_amax, health);
}

Bytes run_reference(MatrixView x, const Nvfp4Options& options, const float* shared_amax,
                    QuantHealth* health) {
  return run_with(accord::formats::quantize_nvfp4_reference, x, options, shared_amax, health);
}

Bytes model(const Matrix& x, const Nvfp4Options& options, const float* shared_amax,
            formats_model::Flaw flaw) {
  using formats_model::Error;
  const Error error = options.four_over_six == FourOverSix::kNone  ? Error::kNone
                      : options.four_over_six == FourOverSix::kMae ? Error::kAbsolute
                                                                   : Error::kSquared;
  return formats_model::nvfp4(x, options.scope == Nvfp4Scope::kToken, options.layout == Nvfp4Layout::k16x16,
                              error, options.range, shared_amax, flaw);
}

int64_t different(const Bytes& a, const Bytes& b) {
  return count_different(a.q, b.q) + count_different(a.scale, b.scale) + count_different(a.amax, b.amax) +
         count_different(a.decoded, b.decoded);
}

}  // namespace formats_nvfp4_support
