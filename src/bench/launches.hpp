#pragma once
// Launches that several tables measure, each over the next operands of the rotating memory.
#include <cstdint>
#include <vector>

#include "bench/device_batch.hpp"
#include "bench/device_bench.hpp"

namespace accord::bench {

// [m,k] rows times a weight [n,k], without operands. bf16: the output's type, else fp32.
kernels::cuda::GemmForward forward_product(WeightFormat format, int64_t m, int64_t n, int64_t k, bool bf16);

// One such product.
class Product {
 public:
  Product(DeviceBench& bench, WeightFormat format, int64_t m, int64_t n, int64_t k, bool bf16);
  Work work() const;
  void operator()();

 private:
  DeviceBench& bench_;
  kernels::cuda::GemmForward g_;
};

// The rows of every expert times its weight [n,k], into bf16, or times two such weights, in one call.
// `num_tables` layers' weights take turns, read from copies in fragment order where few rows meet them and
// there is such an order. Weights and the list of tiles are older than the launch before.
class ExpertProduct {
 public:
  // gather: rows come from those of the tokens, else they are sorted.
  ExpertProduct(DeviceBench& bench, WeightFormat format, const Sizes& sizes, const Routed& routed, int64_t n,
                int64_t k, bool gather, int64_t num_tables, int num_products = 1);
  ExpertProduct(const ExpertProduct&) = delete;
  ExpertProduct& operator=(const ExpertProduct&) = delete;
  Work work() const;
  void operator()();
  // Of a plain read of the weights of the experts that have rows.
  double read_seconds() const;

 private:
  DeviceBench& bench_;
  const Routed& routed_;
  const int64_t inputs_, num_tables_, experts_;
  const int num_products_;
  std::vector<kernels::cuda::GemmWeight> entries_;
  Memory fragments_;
  Memory tables_;
  kernels::cuda::GemmGroups groups_[2];
  kernels::cuda::GemmForward g_;
  int64_t turn_ = 0;
};

// The forward of a phase, out of the cache.
class Attention {
 public:
  Attention(DeviceBench& bench, const ModelConfig& config, const Phase& phase, const DeviceBatch& batch);
  Work work() const;
  void operator()();

 private:
  DeviceBench& bench_;
  const Phase phase_;
  const Sizes s_;
  const int64_t cache_;  // elements of k, and of v
  Memory partials_;
  kernels::cuda::AttentionForward a_;
};

}  // namespace accord::bench
