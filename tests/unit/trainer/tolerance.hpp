#pragma once
// Every tolerance of the trainer's tests.
namespace accord::trainer::tolerance {

// fp64 reference values; their denominators carry + 1e-8, and their std of a group of one is fp32.
inline constexpr double kObjective = 4e-8;
// One fp32 op against fp64 autograd, relative Frobenius norm.
inline constexpr double kOp = 2e-6;
// The same with bf16 operands: inputs are exact, sums are fp32.
inline constexpr double kOpBf16 = 2e-6;
// A whole optimizer step in float32 against transformers and torch in float32.
inline constexpr double kStepScalar = 2e-5;    // loss, gradient norm: relative
inline constexpr double kStepGradient = 2e-5;  // relative Frobenius norm per tensor
inline constexpr double kStepUpdate = 1e-6;    // absolute, where |gradient| > 1e-5
// Gradients of a step in bfloat16, and with MXFP8 or NVFP4 weights and activations besides, against float32
// ones.
inline constexpr double kBf16Gradient = 0.05;
inline constexpr double kMxfp8Gradient = 0.3;
inline constexpr double kNvfp4Gradient = 0.8;

// Several ranks against one, every sample a micro-batch of its own, so that the terms of a gradient have the
// same bits and fp32 sums are taken in another order: at most n u of the sum of the terms' magnitudes, where
// n, the rows of a sample and the samples, is below 100 here and u = 2^-24. Relative Frobenius norm.
inline constexpr double kRankGradient = 100.0 / (1 << 24);
// Gradients with experts on several places against one place, relative Frobenius norm per tensor: matrix
// products of other row counts may sum in another order, and bf16 operands round now and then differently.
inline constexpr double kExchange = 2e-5;

}  // namespace accord::trainer::tolerance
