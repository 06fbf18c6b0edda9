// Every backward kernel against libtorch's autograd in fp64 on random shapes, odd widths included.
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>
#include <vector>

// torch's logging macros and Catch2's share names; ours come last.
#undef CHECK
#include "base/philox.hpp"
#include "kernels/attention/attention_backward.hpp"
#include "kernels/embedding/embedding_backward.hpp"
#include "kernels/linear/linear_backward.hpp"
#include "kernels/logprob/logprob_backward.hpp"
#include "kernels/moe/moe_backward.hpp"
#include "kernels/rmsnorm/rmsnorm_backward.hpp"
#include "kernels/rope/rope_backward.hpp"
#include "kernels/router/router.hpp"
#include "kernels/swiglu/swiglu_backward.hpp"
#include "support/catch.hpp"
#include "trainer/matmul.hpp"
#include "unit/trainer/tolerance.hpp"

namespace accord::trainer {
namespace {

using torch::Tensor;

Tensor random_tensor(PhiloxStream& random, at::IntArrayRef shape, double scale = 1.0) {
  Tensor t = torch::empty(shape, torch::kFloat32);
  for (int64_t i = 0; i < t.numel(); ++i)
    t.data_ptr<float>()[i] = static_cast<float>(random.next_normal() * scale);
  return t;
}

Tensor wide(const Tensor& t) { return t.to(torch::kFloat64).clone().set_requires_grad(true); }
float* data(const Tensor& t) { return t.data_ptr<float>(); }

// A tensor as a kernel operand of either dtype; the fp32 tensor is rounded in place for bf16.
struct Operand {
  Operand(Tensor& t, Dtype dtype) : rows(t.size(0)), cols(t.size(1)), type(dtype) {
    if (dtype == Dtype::kBF16) {
      kernels::round_to_bf16(data(t), t.numel(), data(t));
      for (int64_t i = 0; i < t.numel(); ++i) half.push_back(to_bf16(data(t)[i]));
    }
    pointer = dtype == Dtype::kBF16 ? static_cast<void*>(half.data()) : static_cast<void*>(data(t));
  }
  MatrixView view() const { return {pointer, type, rows, cols, cols}; }
  std::vector<BF16> half;
  int64_t rows, cols;
  Dtype type;
  void* pointer;
};

std::vector<BF16> halves(Tensor& t) {
  std::vector<BF16> out;
  kernels::round_to_bf16(data(t), t.numel(), data(t));
  for (int64_t i = 0; i < t.numel(); ++i) out.push_back(to_bf16(data(t)[i]));
  return out;
}

void check_close(const char* what, const Tensor& mine, const Tensor& reference, Dtype dtype) {
  const double norm = reference.norm().item<double>();
  const double error =
      (mine.to(torch::kFloat64).reshape(reference.sizes()) - reference).norm().item<double>();
  CAPTURE(what, norm, error);
  CHECK(norm > 0.0);
  CHECK(error <= norm * (dtype == Dtype::kBF16 ? tolerance::kOpBf16 : tolerance::kOp));
}

constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kBF16};

}  // namespace

TEST_CASE("rmsnorm backward equals autograd") {
  PhiloxStream random(1, 1);
  for (Dtype dtype : kDtypes) {
    for (auto [rows, width] : {std::pair<int64_t, int64_t>{5, 64}, {9, 37}, {1, 8}, {130, 100}}) {
      Tensor x = random_tensor(random, {rows, width}), w = random_tensor(random, {width});
      const Operand operand(x, dtype);
      const std::vector<BF16> weight = halves(w);
      const Tensor dy = random_tensor(random, {rows, width});
      Tensor x64 = wide(x), w64 = wide(w);
      const Tensor inv = torch::rsqrt(x64.pow(2).mean(-1, true) + 1e-6);
      (x64 * inv * w64).backward(dy.to(torch::kFloat64));
      const Tensor inv32 = inv.detach().to(torch::kFloat32).contiguous();
      Tensor dx = torch::ones({rows, width}), dw = torch::zeros({width});
      kernels::rmsnorm_backward(operand.view(), data(inv32), weight.data(), data(dy), data(dx), true,
                                data(dw));
      check_close("dx added", dx - 1.0, x64.grad(), Dtype::kF32 == dtype ? Dtype::kF32 : dtype);
      check_close("dweight", dw, w64.grad(), dtype);
      Tensor in_place = dy.clone();
      kernels::rmsnorm_backward(operand.view(), data(inv32), weight.data(), data(in_place), data(in_place),
                                false, data(dw));
      check_close("dx in place", in_place, x64.grad(), dtype);
    }
  }
}

TEST_CASE("rope backward equals autograd") {
  PhiloxStream random(1, 2);
  for (int64_t dim : {8, 16, 10}) {
    kernels::RopeTable table(dim, 10000.0, {});
    table.ensure(200);
    const int64_t rows = 7, heads = 3, half = dim / 2;
    std::vector<int32_t> positions{0, 1, 5, 77, 199, 3, 2};
    const Tensor x = random_tensor(random, {rows, heads, dim}),
                 dy = random_tensor(random, {rows, heads, dim});
    Tensor cos = torch::empty({rows, 1, half}), sin = torch::empty({rows, 1, half});
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(table.cos(positions[static_cast<size_t>(r)]), half, data(cos) + r * half);
      std::copy_n(table.sin(positions[static_cast<size_t>(r)]), half, data(sin) + r * half);
    }
    Tensor x64 = wide(x);
    const Tensor a = x64.slice(2, 0, half), b = x64.slice(2, half, dim);
    const Tensor c = cos.to(torch::kFloat64), s = sin.to(torch::kFloat64);
    torch::cat({a * c - b * s, b * c + a * s}, 2).backward(dy.to(torch::kFloat64));
    Tensor dx = dy.clone();
    kernels::rope_backward(data(dx), rows, heads * dim, positions.data(), table);
    check_close("dx", dx, x64.grad(), Dtype::kF32);
  }
}

TEST_CASE("swiglu backward equals autograd") {
  PhiloxStream random(1, 3);
  for (Dtype dtype : kDtypes) {
    for (auto [rows, width] : {std::pair<int64_t, int64_t>{6, 48}, {3, 21}}) {
      Tensor gate = random_tensor(random, {rows, width}, 3.0), up = random_tensor(random, {rows, width});
      const Operand gate_operand(gate, dtype), up_operand(up, dtype);
      const Tensor dact = random_tensor(random, {rows, width});
      Tensor gate64 = wide(gate), up64 = wide(up);
      (torch::silu(gate64) * up64).backward(dact.to(torch::kFloat64));
      Tensor dgate = torch::empty({rows, width}), dup = dact.clone();
      kernels::swiglu_backward(gate_operand.view(), up_operand.view(), data(dup), data(dgate), data(dup));
      check_close("dgate", dgate, gate64.grad(), dtype);
      check_close("dup", dup, up64.grad(), dtype);
    }
  }
}

TEST_CASE("attention backward equals autograd") {
  PhiloxStream random(1, 4);
  struct Shape {
    int64_t rows, heads, kv_heads, dim;
  };
  for (Dtype dtype : kDtypes) {
    for (const Shape& s : {Shape{1, 2, 1, 8}, Shape{13, 4, 2, 16}, Shape{64, 2, 2, 32}, Shape{150, 6, 2, 12},
                           Shape{200, 3, 1, 64}}) {
      CAPTURE(s.rows, s.heads, s.dim);
      Tensor q = random_tensor(random, {s.rows, s.heads * s.dim}),
             k = random_tensor(random, {s.rows, s.kv_heads * s.dim}),
             v = random_tensor(random, {s.rows, s.kv_heads * s.dim});
      const Operand q_op(q, dtype), k_op(k, dtype), v_op(v, dtype);
      const Tensor dout = random_tensor(random, {s.rows, s.heads * s.dim});
      const double scale = 1.0 / std::sqrt(static_cast<double>(s.dim));
      Tensor q64 = wide(q), k64 = wide(k), v64 = wide(v);
      const auto heads_of = [&](const Tensor& t, int64_t n) {
        return t.view({s.rows, n, s.dim}).transpose(0, 1);
      };
      const Tensor k_all = heads_of(k64, s.kv_heads).repeat_interleave(s.heads / s.kv_heads, 0);
      const Tensor v_all = heads_of(v64, s.kv_heads).repeat_interleave(s.heads / s.kv_heads, 0);
      const Tensor mask = torch::ones({s.rows, s.rows}, torch::kBool).triu(1);
      const Tensor scores =
          (heads_of(q64, s.heads).matmul(k_all.transpose(1, 2)) * scale).masked_fill(mask, -INFINITY);
      const Tensor out =
          torch::softmax(scores, -1).matmul(v_all).transpose(0, 1).reshape({s.rows, s.heads * s.dim});
      out.backward(dout.to(torch::kFloat64));

      // The forward's result stays fp32 here: its own rounding is not the backward's.
      Tensor out32 = out.detach().to(torch::kFloat32).contiguous();
      const Tensor lse =
          torch::logsumexp(scores, -1).transpose(0, 1).detach().to(torch::kFloat32).contiguous();
      Tensor out_rounded = out32.clone();
      const Operand out_op(dtype == Dtype::kBF16 ? out_rounded : out32, dtype);
      Tensor dq = torch::full({s.rows, s.heads * s.dim}, 7.0),
             dk = torch::full({s.rows, s.kv_heads * s.dim}, 7.0), dv = dk.clone();
      kernels::AttentionBackward args;
      args.q_NQ = q_op.view();
      args.k_NC = k_op.view();
      args.v_NC = v_op.view();
      args.out_NQ = out_op.view();
      args.lse = data(lse);
      args.dout_NQ = data(dout);
      args.dq_NQ = data(dq);
      args.dk_NC = data(dk);
      args.dv_NC = data(dv);
      args.num_heads = s.heads;
      args.num_kv_heads = s.kv_heads;
      args.head_dim = s.dim;
      args.scale = static_cast<float>(scale);
      std::vector<float> scratch(static_cast<size_t>(kernels::attention_backward_scratch(s.rows, s.dim)),
                                 NAN);
      for (int64_t head = 0; head < s.kv_heads; ++head)
        kernels::attention_backward(args, head, scratch.data());
      check_close("dv", dv, v64.grad(), dtype);
      if (s.rows == 1) continue;  // one key: dq and dk are 0
      if (dtype == Dtype::kF32) {
        check_close("dq", dq, q64.grad(), dtype);
        check_close("dk", dk, k64.grad(), dtype);
      } else {
        // rowsum(do * o) carries the rounding of o to bf16: compare with that o.
        const Tensor p = torch::softmax(scores, -1).detach();
        const Tensor d = dout.to(torch::kFloat64).view({s.rows, s.heads, s.dim}).transpose(0, 1);
        const Tensor dot = (d * heads_of(out_rounded.to(torch::kFloat64), s.heads)).sum(-1, true);
        const Tensor ds = p * (d.matmul(v_all.detach().transpose(1, 2)) - dot) * scale;
        check_close("dq", dq, ds.matmul(k_all.detach()).transpose(0, 1).reshape({s.rows, s.heads * s.dim}),
                    dtype);
        const Tensor per_head = ds.transpose(1, 2).matmul(heads_of(q64.detach(), s.heads));
        check_close("dk", dk,
                    per_head.view({s.kv_heads, s.heads / s.kv_heads, s.rows, s.dim})
                        .sum(1)
                        .transpose(0, 1)
                        .reshape({s.rows, s.kv_heads * s.dim}),
                    dtype);
      }
    }
  }
}

TEST_CASE("log-prob and entropy backward equals autograd") {
  PhiloxStream random(1, 5);
  for (int64_t vocab : {40, 517}) {
    for (float temperature : {1.0F, 0.7F}) {
      const Tensor logits = random_tensor(random, {vocab}, 3.0);
      const int32_t token = static_cast<int32_t>(random.next_below(static_cast<uint64_t>(vocab)));
      Tensor x = wide(logits);
      const Tensor log_p = torch::log_softmax(x / static_cast<double>(temperature), -1);
      const Tensor entropy = -(log_p.exp() * log_p).sum();
      (0.3 * log_p[token] - 0.2 * entropy).backward();
      const kernels::SoftmaxStats stats = kernels::softmax_stats(data(logits), vocab, temperature);
      const float h = kernels::softmax_entropy(data(logits), vocab, temperature, stats);
      CHECK(std::abs(h - entropy.item<double>()) < 1e-5);
      Tensor d = logits.clone();
      kernels::logprob_backward(data(d), vocab, temperature, stats, token, h, 0.3F, -0.2F);
      check_close("dlogits", d, x.grad(), Dtype::kF32);
    }
  }
}

TEST_CASE("embedding backward equals autograd") {
  PhiloxStream random(1, 6);
  const int64_t vocab = 11, hidden = 20;
  const std::vector<int32_t> tokens{3, 3, 0, 10, 3, 7};
  const Tensor dx = random_tensor(random, {6, hidden});
  Tensor table = wide(random_tensor(random, {vocab, hidden}));
  const Tensor ids = torch::tensor(std::vector<int64_t>(tokens.begin(), tokens.end()));
  table.index_select(0, ids).backward(dx.to(torch::kFloat64));
  Tensor dtable = torch::zeros({vocab, hidden});
  for (int64_t begin = 0; begin < hidden; begin += 8) {
    kernels::embedding_backward(tokens, data(dx), hidden, begin, std::min(begin + 8, hidden), data(dtable));
  }
  check_close("dtable", dtable, table.grad(), Dtype::kF32);
}

TEST_CASE("mixture of experts backward equals autograd") {
  PhiloxStream random(1, 7);
  for (bool normalized : {true, false}) {
    for (Dtype dtype : kDtypes) {
      const int64_t tokens = 9, experts = 6, slots = 2, hidden = 21, rows = tokens * slots;
      const Tensor logits = random_tensor(random, {tokens, experts}, 2.0);
      Tensor down = random_tensor(random, {rows, hidden});
      const Operand down_op(down, dtype);
      const Tensor dy = random_tensor(random, {tokens, hidden});
      Tensor logits64 = wide(logits), down64 = wide(down);
      const Tensor probs64 = torch::softmax(logits64, -1);
      auto [top, ids64] = probs64.topk(slots, -1);
      const Tensor weights64 = normalized ? top / top.sum(-1, true) : top;
      // Sorted by expert, then token.
      std::vector<int32_t> ids, order(static_cast<size_t>(rows)), sorted_tokens, sorted_slots;
      const Tensor flat = ids64.contiguous();
      for (int64_t i = 0; i < rows; ++i) ids.push_back(static_cast<int32_t>(flat.data_ptr<int64_t>()[i]));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return ids[static_cast<size_t>(a)] < ids[static_cast<size_t>(b)];
      });
      std::vector<int32_t> rows_of_slots(static_cast<size_t>(rows));
      for (int64_t r = 0; r < rows; ++r) {
        const int32_t flat_slot = order[static_cast<size_t>(r)];
        sorted_tokens.push_back(flat_slot / static_cast<int32_t>(slots));
        sorted_slots.push_back(flat_slot % static_cast<int32_t>(slots));
        rows_of_slots[static_cast<size_t>(flat_slot)] = static_cast<int32_t>(r);
      }
      const Tensor gather = torch::tensor(std::vector<int64_t>(rows_of_slots.begin(), rows_of_slots.end()));
      const Tensor y =
          (down64.index_select(0, gather).view({tokens, slots, hidden}) * weights64.unsqueeze(-1)).sum(1);
      y.backward(dy.to(torch::kFloat64));

      const Tensor probs = probs64.detach().to(torch::kFloat32).contiguous();
      const Tensor weights = weights64.detach().to(torch::kFloat32).contiguous();
      Tensor ddown = torch::empty({rows, hidden}), dweights = torch::empty({tokens, slots}),
             dlogits = torch::empty({tokens, experts});
      kernels::moe_combine_backward(data(dy), hidden, down_op.view(), sorted_tokens.data(),
                                    sorted_slots.data(), data(weights), slots, 0, rows, data(ddown),
                                    data(dweights));
      kernels::router_backward(data(probs), experts, ids.data(), data(dweights), slots, normalized, 0, tokens,
                               data(dlogits));
      check_close("ddown", ddown, down64.grad(), dtype);
      check_close("dlogits", dlogits, logits64.grad(), dtype);

      const Tensor dx_rows = random_tensor(random, {rows, hidden});
      Tensor dx = torch::ones({tokens, hidden});
      kernels::moe_dispatch_backward(data(dx_rows), hidden, rows_of_slots.data(), slots, 0, tokens, data(dx));
      const Tensor expected =
          dx_rows.to(torch::kFloat64).index_select(0, gather).view({tokens, slots, hidden}).sum(1) + 1.0;
      check_close("dispatch", dx, expected, Dtype::kF32);
    }
  }
}

TEST_CASE("matrix products equal fp64, add up, and do not depend on threads") {
  PhiloxStream random(1, 8);
  ThreadPool one(1), three(3);
  const int64_t rows = 300, in = 70, out = 90;
  const Tensor dy = random_tensor(random, {rows, out}), w = random_tensor(random, {out, in}),
               x = random_tensor(random, {rows, in}), dy2 = random_tensor(random, {rows, 20}),
               w2 = random_tensor(random, {20, in});
  const auto run = [&](ThreadPool& pool) {
    Tensor dx = torch::empty({rows, in}), dw = torch::ones({out, in});
    Products products;
    products.add_rows({{data(dy), data(w), out}, {data(dy2), data(w2), 20}}, rows, in, data(dx));
    products.add_gradient(data(dy), data(x), rows, out, in, data(dw));
    products.add_gradient(data(dy), data(x), 0, out, in, data(dw));
    REQUIRE(products.run(pool).ok());
    return std::pair(dx, dw);
  };
  const auto [dx, dw] = run(one);
  const auto [dx3, dw3] = run(three);
  CHECK(torch::equal(dx, dx3));
  CHECK(torch::equal(dw, dw3));
  const auto d = [](const Tensor& t) { return t.to(torch::kFloat64); };
  check_close("dgrad", dx, d(dy).matmul(d(w)) + d(dy2).matmul(d(w2)), Dtype::kF32);
  check_close("wgrad", dw, d(dy).t().matmul(d(x)) + 1.0, Dtype::kF32);
}

// The library chooses another order of addition where it may use several threads: with 5 to 11 rows, say.
TEST_CASE("a matrix product has the same bits on a thread that never ran one") {
  PhiloxStream random(1, 9);
  ThreadPool pool(1);
  torch::set_num_threads(1);  // of this thread only
  const int64_t width = 64;
  for (int64_t rows = 1; rows <= 16; ++rows) {
    const Tensor dy = random_tensor(random, {rows, width}), w = random_tensor(random, {width, width});
    const auto run = [&](Tensor& dx) {
      Products products;
      products.add_rows({{data(dy), data(w), width}, {data(dy), data(w), width}}, rows, width, data(dx));
      return products.run(pool);
    };
    Tensor here = torch::empty({rows, width}), there = torch::empty({rows, width});
    CHECK(run(here).ok());
    Status status;
    std::thread([&] { status = run(there); }).join();
    CHECK(status.ok());
    CAPTURE(rows);
    CHECK(torch::equal(here, there));
  }
}

TEST_CASE("rounding to bf16 equals to_bf16 on every pattern of the upper bits") {
  std::vector<float> in, out;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (uint32_t low : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      in.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  out.resize(in.size());
  kernels::round_to_bf16(in.data(), static_cast<int64_t>(in.size()), out.data());
  size_t different = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    const float expected = to_float(to_bf16(in[i]));
    different += std::bit_cast<uint32_t>(expected) != std::bit_cast<uint32_t>(out[i]) ? 1 : 0;
  }
  CHECK(different == 0);
}

}  // namespace accord::trainer
