// Backward kernels of rows on the device against the CPU's, bit for bit where the headers promise it, else
// against sums in double with a bound from the terms' sizes; and the same bytes every time.
#include <algorithm>
#include <cmath>

#include "backward_values.hpp"
#include "gpu.hpp"
#include "kernels/embedding/embedding_backward.hpp"
#include "kernels/embedding/embedding_backward_cuda.hpp"
#include "kernels/logprob/logprob_backward.hpp"
#include "kernels/logprob/logprob_backward_cuda.hpp"
#include "kernels/moe/moe_backward.hpp"
#include "kernels/moe/moe_backward_cuda.hpp"
#include "kernels/rope/rope_backward.hpp"
#include "kernels/rope/rope_backward_cuda.hpp"
#include "kernels/swiglu/swiglu_backward.hpp"
#include "kernels/swiglu/swiglu_backward_cuda.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace accord::kernels;
using gpu_test::bytes_of;
using gpu_test::close;
using gpu_test::different;
using gpu_test::Gpu;
using gpu_test::kUlp;
using gpu_test::mixed;
using gpu_test::normal;
using gpu_test::on_device;
using gpu_test::rounded;

namespace {

std::vector<int32_t> positions_of(int64_t rows, int32_t count) {
  std::vector<int32_t> positions;
  for (int64_t t = 0; t < rows; ++t) positions.push_back(static_cast<int32_t>((t * 7919) % count));
  return positions;
}

struct DeviceRope {
  DeviceRope(const Gpu& gpu, const RopeTable& table)
      : cos(gpu.upload(table.cos(0), bytes_of<float>(table.positions() * table.head_dim() / 2))),
        sin(gpu.upload(table.sin(0), bytes_of<float>(table.positions() * table.head_dim() / 2))),
        view{cos.as<float>(), sin.as<float>(), table.head_dim() / 2} {}
  Memory cos;
  Memory sin;
  cuda::RopeTableView view;
};

}  // namespace

TEST_CASE("backward rows: rope has the CPU's bits") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  constexpr int64_t kTokens = 37;
  constexpr int64_t kHeads = 5;
  const std::vector<int32_t> positions = positions_of(kTokens, 4000);
  const Memory position_memory = gpu->upload(positions);
  for (const int64_t dim : {16, 64, 128, 12, 4, 2}) {
    CAPTURE(dim);
    RopeTable table(dim, 10000.0, RopeScaling{});
    table.ensure(4000);
    const DeviceRope rope(*gpu, table);
    const int64_t width = kHeads * dim;
    const int64_t stride = width + 8;
    const std::vector<float> dy = mixed<float>(9, kTokens, width);
    std::vector<float> dx = dy;
    rope_backward(dx.data(), kTokens, width, positions.data(), table);
    const Memory in = gpu->upload(dy);
    const Memory wide = gpu->upload(std::vector<BF16>(static_cast<size_t>(kTokens * stride)));
    cuda::rope_backward(in.as<float>(), kTokens, width, position_memory.as<int32_t>(), rope.view,
                        on_device<BF16>(wide, kTokens, width, stride), gpu->handle());
    std::vector<BF16> expected(static_cast<size_t>(kTokens * stride));
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t i = 0; i < width; ++i) {
        expected[static_cast<size_t>(t * stride + i)] = to_bf16(dx[static_cast<size_t>(t * width + i)]);
      }
    }
    CHECK(different(gpu->download<BF16>(wide, expected.size()), expected) == 0);
    cuda::rope_backward(in.as<float>(), kTokens, width, position_memory.as<int32_t>(), rope.view,
                        on_device<float>(in, kTokens, width), gpu->handle());
    CHECK(different(gpu->download<float>(in, dx.size()), dx) == 0);
    cuda::rope_backward(nullptr, 0, width, nullptr, rope.view, on_device<float>(in, 0, width), gpu->handle());
  }
}

TEST_CASE("backward rows: rope of wider heads has the CPU's bits and leaves other columns") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  constexpr int64_t kTokens = 19;
  constexpr int64_t kHeads = 6;
  const std::vector<int32_t> positions = positions_of(kTokens, 500);
  const Memory position_memory = gpu->upload(positions);
  const auto compare = [&](int64_t dim, int64_t offset, bool neighbours, bool shared) {
    CAPTURE(dim, offset, neighbours, shared);
    RopeTable table(dim, 10000.0, RopeScaling{});
    table.ensure(500);
    const DeviceRope rope(*gpu, table);
    const int64_t head = dim + offset;
    const int64_t width = kHeads * head;
    const std::vector<float> dy = mixed<float>(11, kTokens, width);
    std::vector<float> dx(dy.size(), 0.25F);
    const int64_t x_stride = shared ? 0 : head;
    RopeHeadsBackward host;
    host.layout = {kHeads, x_stride, head, neighbours ? RopePairs::kNeighbours : RopePairs::kHalves};
    host.dy = dy.data();
    host.y_width = width;
    host.y_offset = offset;
    host.dx = dx.data();
    host.x_width = width;
    host.x_offset = offset;
    const Memory dy_memory = gpu->upload(dy);
    const Memory as_float = gpu->upload(dx);
    const Memory as_bf16 = gpu->upload(rounded(dx));
    rope_heads_backward(host, kTokens, positions.data(), table);
    cuda::RopeHeadsBackward args;
    args.layout = {kHeads, x_stride, head, neighbours};
    args.dy = dy_memory.as<float>();
    args.y_width = width;
    args.y_offset = offset;
    args.x_offset = offset;
    args.dx = on_device<float>(as_float, kTokens, width);
    cuda::rope_heads_backward(args, kTokens, position_memory.as<int32_t>(), rope.view, gpu->handle());
    CHECK(different(gpu->download<float>(as_float, dx.size()), dx) == 0);
    args.dx = on_device<BF16>(as_bf16, kTokens, width);
    cuda::rope_heads_backward(args, kTokens, position_memory.as<int32_t>(), rope.view, gpu->handle());
    CHECK(different(gpu->download<BF16>(as_bf16, dx.size()), rounded(dx)) == 0);
  };
  for (const auto& [dim, offset] : {std::pair<int64_t, int64_t>{64, 128}, {16, 0}, {8, 5}, {6, 3}, {64, 4}}) {
    for (const bool neighbours : {false, true}) {
      for (const bool shared : {false, true}) compare(dim, offset, neighbours, shared);
    }
  }
}

TEST_CASE("backward rows: swiglu has the CPU's bits") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const auto& [rows, cols, padding] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 0},
                                            {3, 5, 5},
                                            {7, 768, 768},
                                            {60, 1536, 0},
                                            {9, 1001, 1},
                                            {40, 192, 8},
                                            {5, 24, 4},
                                            {0, 64, 0}}) {
    CAPTURE(rows, cols, padding);
    const int64_t stride = cols + padding;
    std::vector<BF16> gate = mixed<BF16>(1, rows, stride);
    std::vector<BF16> up = mixed<BF16>(2, rows, stride);
    const std::vector<float> dact = mixed<float>(3, rows, cols);
    std::vector<float> dgate(dact.size());
    std::vector<float> dup(dact.size());
    swiglu_backward({gate.data(), Dtype::kBF16, rows, cols, stride},
                    {up.data(), Dtype::kBF16, rows, cols, stride}, dact.data(), dgate.data(), dup.data());
    const Memory gate_memory = gpu->upload(gate);
    const Memory up_memory = gpu->upload(up);
    const Memory dact_memory = gpu->upload(dact);
    const Memory dgate_memory = gpu->allocate(bytes_of<BF16>(rows * cols));
    const Memory dup_memory = gpu->allocate(bytes_of<BF16>(rows * cols));
    cuda::swiglu_backward(on_device<BF16>(gate_memory, rows, cols, stride),
                          on_device<BF16>(up_memory, rows, cols, stride), dact_memory.as<float>(),
                          dgate_memory.as<BF16>(), dup_memory.as<BF16>(), gpu->handle());
    CHECK(different(gpu->download<BF16>(dgate_memory, dgate.size()), rounded(dgate)) == 0);
    CHECK(different(gpu->download<BF16>(dup_memory, dup.size()), rounded(dup)) == 0);
  }
}

TEST_CASE("backward rows: embedding has the CPU's bits") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  constexpr int32_t kVocab = 300;
  for (const auto& [tokens, hidden] :
       {std::pair<int64_t, int64_t>{1, 64}, {400, 7}, {300, 576}, {150, 2048}, {33, 7168}, {0, 64}}) {
    CAPTURE(tokens, hidden);
    std::vector<int32_t> ids;
    std::vector<std::vector<int32_t>> rows(kVocab);
    for (int64_t t = 0; t < tokens; ++t) {
      const auto token = static_cast<int32_t>(t % 3 == 0 ? 17 : (t * t * 31 + 5) % kVocab);
      ids.push_back(token);
      rows[static_cast<size_t>(token)].push_back(static_cast<int32_t>(t));
    }
    std::vector<int32_t> different_tokens;
    std::vector<int32_t> offsets{0};
    std::vector<int32_t> sorted;
    for (int32_t token = kVocab - 1; token >= 0; --token) {
      const std::vector<int32_t>& mine = rows[static_cast<size_t>(token)];
      if (mine.empty()) continue;
      different_tokens.push_back(token);
      sorted.insert(sorted.end(), mine.begin(), mine.end());
      offsets.push_back(static_cast<int32_t>(sorted.size()));
    }
    const std::vector<float> dx = mixed<float>(5, tokens, hidden);
    std::vector<float> table = normal<float>(6, kVocab * hidden);
    const Memory dx_memory = gpu->upload(dx);
    const Memory table_memory = gpu->upload(table);
    const Memory token_memory = gpu->upload(different_tokens);
    const Memory offset_memory = gpu->upload(offsets);
    const Memory row_memory = gpu->upload(sorted);
    embedding_backward(ids, dx.data(), hidden, 0, hidden, table.data());
    cuda::embedding_backward({token_memory.as<int32_t>(), offset_memory.as<int32_t>(),
                              row_memory.as<int32_t>(), static_cast<int32_t>(different_tokens.size())},
                             dx_memory.as<float>(), hidden, table_memory.as<float>(), gpu->handle());
    CHECK(different(gpu->download<float>(table_memory, table.size()), table) == 0);
  }
}

TEST_CASE("backward rows: combining and dispatching of experts") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const auto& [tokens, k, hidden] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 8},
                                          {9, 2, 7},
                                          {31, 8, 2048},
                                          {50, 4, 64},
                                          {7, 9, 576},
                                          {3, 8, 7168},
                                          {0, 8, 64}}) {
    CAPTURE(tokens, k, hidden);
    const int64_t rows = tokens * k;
    std::vector<int32_t> sorted_tokens(static_cast<size_t>(rows));
    std::vector<int32_t> sorted_slots(static_cast<size_t>(rows));
    std::vector<int32_t> slot_rows;
    for (int64_t i = 0; i < rows; ++i) {
      const auto row = static_cast<size_t>(rows - 1 - i);  // any order is an order of experts
      sorted_tokens[row] = static_cast<int32_t>(i / k);
      sorted_slots[row] = static_cast<int32_t>(i % k);
      slot_rows.push_back(static_cast<int32_t>(row));
    }
    const std::vector<float> dy = normal<float>(1, tokens * hidden);
    std::vector<BF16> down = normal<BF16>(2, rows * hidden, 2.0F);
    const std::vector<float> weights = normal<float>(3, rows);
    std::vector<float> ddown(down.size());
    std::vector<float> dweights(weights.size());
    moe_combine_backward(dy.data(), hidden, matrix_view(down.data(), rows, hidden), sorted_tokens.data(),
                         sorted_slots.data(), weights.data(), k, 0, rows, ddown.data(), dweights.data());
    const Memory dy_memory = gpu->upload(dy);
    const Memory down_memory = gpu->upload(down);
    const Memory token_memory = gpu->upload(sorted_tokens);
    const Memory slot_memory = gpu->upload(sorted_slots);
    const Memory row_memory = gpu->upload(slot_rows);
    const Memory weight_memory = gpu->upload(weights);
    std::vector<float> first;
    for (int round = 0; round < 2; ++round) {
      const Memory ddown_memory = gpu->allocate(bytes_of<BF16>(rows * hidden));
      const Memory dweight_memory = gpu->allocate(bytes_of<float>(rows));
      cuda::moe_combine_backward(dy_memory.as<float>(), hidden, on_device<BF16>(down_memory, rows, hidden),
                                 token_memory.as<int32_t>(), slot_memory.as<int32_t>(),
                                 weight_memory.as<float>(), k, ddown_memory.as<BF16>(),
                                 dweight_memory.as<float>(), gpu->handle());
      CHECK(different(gpu->download<BF16>(ddown_memory, ddown.size()), rounded(ddown)) == 0);
      const std::vector<float> got = gpu->download<float>(dweight_memory, dweights.size());
      int64_t wrong = 0;
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t t = sorted_tokens[static_cast<size_t>(r)];
        const auto slot = static_cast<size_t>(t * k + sorted_slots[static_cast<size_t>(r)]);
        double sum = 0.0;
        double size = 0.0;
        for (int64_t h = 0; h < hidden; ++h) {
          const double term = static_cast<double>(dy[static_cast<size_t>(t * hidden + h)]) *
                              to_float(down[static_cast<size_t>(r * hidden + h)]);
          sum += term;
          size += std::abs(term);
        }
        wrong += close(got[slot], sum, 300 * kUlp * size) ? 0 : 1;
      }
      CHECK(wrong == 0);
      if (round == 1) CHECK(different(got, first) == 0);
      first = got;
    }

    const std::vector<float> dx_rows = mixed<float>(5, rows, hidden);
    std::vector<float> dx = normal<float>(6, tokens * hidden);
    const Memory dx_rows_memory = gpu->upload(dx_rows);
    const Memory dx_memory = gpu->upload(dx);
    moe_dispatch_backward(dx_rows.data(), hidden, slot_rows.data(), k, 0, tokens, dx.data());
    cuda::moe_dispatch_backward(dx_rows_memory.as<float>(), hidden, row_memory.as<int32_t>(), k, tokens,
                                dx_memory.as<float>(), gpu->handle());
    CHECK(different(gpu->download<float>(dx_memory, dx.size()), dx) == 0);
  }
}

TEST_CASE("backward rows: routers have the CPU's bits") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const auto& [tokens, experts, k] : {std::tuple<int64_t, int64_t, int64_t>{1, 4, 1},
                                           {100, 128, 8},
                                           {33, 256, 8},
                                           {9, 37, 5},
                                           {5, 64, 40},
                                           {0, 8, 2}}) {
    for (const RouterScoring scoring : {RouterScoring::kSoftmax, RouterScoring::kSigmoid}) {
      for (const bool normalize : {false, true}) {
        CAPTURE(tokens, experts, k, static_cast<int>(scoring), normalize);
        RouterRule rule;
        rule.scoring = scoring;
        rule.experts = experts;
        rule.k = k;
        rule.normalize = normalize;
        rule.factor = 2.5F;
        std::vector<float> scores = normal<float>(1, tokens * experts, 0.3F);
        for (float& s : scores) s = std::abs(s);
        std::vector<int32_t> ids;
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t s = 0; s < k; ++s) ids.push_back(static_cast<int32_t>((t * 13 + 3 * s) % experts));
          for (int64_t s = 0; t % 4 == 3 && s < experts; ++s)
            scores[static_cast<size_t>(t * experts + s)] *= 1e-30F;
        }
        if (tokens > 2) scores[static_cast<size_t>(2 * experts)] = NAN;
        const std::vector<float> dweights = mixed<float>(2, tokens, k);
        std::vector<float> dlogits(scores.size());
        router_backward(rule, scores.data(), ids.data(), dweights.data(), 0, tokens, dlogits.data());
        const Memory score_memory = gpu->upload(scores);
        const Memory id_memory = gpu->upload(ids);
        const Memory dweight_memory = gpu->upload(dweights);
        const Memory out = gpu->allocate(bytes_of<BF16>(tokens * experts));
        cuda::router_backward(rule, score_memory.as<float>(), id_memory.as<int32_t>(),
                              dweight_memory.as<float>(), tokens, out.as<BF16>(), gpu->handle());
        CHECK(different(gpu->download<BF16>(out, dlogits.size()), rounded(dlogits)) == 0);
      }
    }
  }
}

TEST_CASE("backward rows: log-probabilities have the CPU's bits") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const auto& [vocab, rows, padding] : {std::tuple<int64_t, int64_t, int64_t>{1, 4, 0},
                                             {7, 9, 0},
                                             {100, 12, 0},
                                             {104, 12, 4},
                                             {2048, 9, 0},
                                             {2049, 9, 1},
                                             {49152, 6, 0},
                                             {151936, 5, 0},
                                             {262144, 3, 0},
                                             {64, 0, 0}}) {
    CAPTURE(vocab, rows, padding);
    const int64_t stride = vocab + padding;
    std::vector<float> logits = normal<float>(static_cast<uint32_t>(vocab), rows * stride, 4.0F);
    if (rows > 4) {
      logits[static_cast<size_t>(2 * stride)] = INFINITY;
      logits[static_cast<size_t>(3 * stride)] = NAN;
      logits[static_cast<size_t>(4 * stride)] = -INFINITY;
    }
    std::vector<float> temperatures;
    std::vector<int32_t> tokens;
    std::vector<float> entropies;
    const std::vector<float> dlogprobs = normal<float>(2, rows);
    std::vector<float> dentropies = normal<float>(3, rows, 0.1F);
    std::vector<BF16> expected;
    for (int64_t r = 0; r < rows; ++r) {
      const auto i = static_cast<size_t>(r);
      temperatures.push_back(r % 3 == 0 ? 1.0F : 0.3F + 0.1F * static_cast<float>(r));
      tokens.push_back(static_cast<int32_t>((r * 7919 + vocab - 1) % vocab));
      if (r % 2 == 1) dentropies[i] = 0.0F;
      std::vector<float> row(logits.begin() + r * stride, logits.begin() + r * stride + vocab);
      const SoftmaxStats stats = softmax_stats(row.data(), vocab, temperatures[i]);
      entropies.push_back(softmax_entropy(row.data(), vocab, temperatures[i], stats));
      logprob_backward(row.data(), vocab, temperatures[i], stats, tokens[i], entropies[i], dlogprobs[i],
                       dentropies[i]);
      for (const float v : row) expected.push_back(to_bf16(v));
    }
    const Memory logit_memory = gpu->upload(logits);
    const Memory temperature_memory = gpu->upload(temperatures);
    const Memory token_memory = gpu->upload(tokens);
    const Memory entropy_memory = gpu->upload(entropies);
    const Memory dlogprob_memory = gpu->upload(dlogprobs);
    const Memory dentropy_memory = gpu->upload(dentropies);
    const Memory out = gpu->allocate(bytes_of<BF16>(rows * vocab));
    cuda::logprob_backward(on_device<float>(logit_memory, rows, vocab, stride),
                           temperature_memory.as<float>(), token_memory.as<int32_t>(),
                           entropy_memory.as<float>(), dlogprob_memory.as<float>(),
                           dentropy_memory.as<float>(), out.as<BF16>(), gpu->handle());
    CHECK(different(gpu->download<BF16>(out, expected.size()), expected) == 0);
  }
}
