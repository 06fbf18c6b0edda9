#include "formats_inputs.hpp"
#include "formats_nvfp4_support.hpp"
#include "support/catch.hpp"

using namespace formats_nvfp4_support;
using formats_model::Flaw;

TEST_CASE("formats: four over six bytes agree with scalar code and model on hard inputs") {
  for (const std::string& kind : formats_inputs::kinds()) {
    Matrix x = formats_inputs::make(kind, 32, 16 * 13, 21);
    Matrix rounded = formats_inputs::rounded_to_bf16(x);
    std::vector<accord::BF16> narrow = formats_inputs::as_bf16(x);
    for (const Nvfp4Options& options : four_over_six_options()) {
      INFO(kind << " scope " << static_cast<int>(options.scope) << " layout "
                << static_cast<int>(options.layout) << " error " << static_cast<int>(options.four_over_six)
                << " range " << options.range);
      const Bytes got = run(view(x), options);
      CHECK(different(got, model(x, options)) == 0);
      CHECK(different(got, run_reference(view(x), options)) == 0);
      CHECK(different(run(accord::matrix_view(narrow.data(), x.rows, x.cols), options),
                      model(rounded, options)) == 0);
    }
  }
}

// Sums tie, or nearly so, when few values occur: a fused multiply-add changes decisions there, and the case
// counts only if it does.
TEST_CASE("formats: four over six keeps decisions that a fused multiply-add would flip") {
  Matrix x = formats_inputs::make("ties", 512, 256, 22);
  const Nvfp4Options options{Nvfp4Scope::kToken, Nvfp4Layout::k1x16, FourOverSix::kMse, 448};
  const Bytes want = model(x, options);
  const Bytes fused = model(x, options, nullptr, Flaw::kFusedSquare);
  CHECK(formats_inputs::count_different(want.scale, fused.scale) > 0);
  CHECK(different(run(view(x), options), want) == 0);
  CHECK(different(run_reference(view(x), options), want) == 0);
}

// As above: the case counts only if the order of the sum decides.
TEST_CASE("formats: four over six sums the rows of a 16x16 tile in a tree") {
  Matrix x = formats_inputs::make("sparse", 256, 512, 23);
  const float outer = 4.0F;  // with few distinct sums, ties are frequent
  for (FourOverSix mode : {FourOverSix::kMae, FourOverSix::kMse}) {
    const Nvfp4Options options{Nvfp4Scope::kTensor, Nvfp4Layout::k16x16, mode, 448};
    const Bytes want = model(x, options, &outer);
    const Bytes sequential = model(x, options, &outer, Flaw::kSequentialRows);
    CHECK(formats_inputs::count_different(want.scale, sequential.scale) > 0);
    CHECK(different(run(view(x), options, &outer), want) == 0);
    CHECK(different(run_reference(view(x), options, &outer), want) == 0);
  }
}

TEST_CASE("formats: four over six takes both candidates, and six where errors are equal or NaN") {
  const Nvfp4Options options{Nvfp4Scope::kTensor, Nvfp4Layout::k1x16, FourOverSix::kMae, 448};
  Matrix x{std::vector<float>(48), 1, 48};
  x.x[0] = 6.0F;   // block 0: the amax alone, which both candidates represent: six
  x.x[16] = 4.0F;  // block 1: 4 and 3 are both elements of the grid scaled to 4, and 4.5 of 6 is not
  x.x[17] = 3.0F;
  x.x[32] = 4.0F;  // block 2: the same with a NaN
  x.x[33] = 3.0F;
  x.x[34] = -__builtin_nanf("");
  const float outer = 672.0F;  // S = 4
  const Bytes got = run(view(x), options, &outer);
  CHECK(different(got, model(x, options, &outer)) == 0);
  CHECK(got.scale[0] == 0x48);  // 4: fl(fl(6/6)*4)
  CHECK(got.scale[1] == 0x48);  // 4: 1.5 * 4 * 4/6
  CHECK(got.scale[2] == 0x43);  // 2.75, the E4M3 nearest to 4*4/6
  CHECK(got.q[17] == 0x07);     // the NaN element: +6
}
