#include "bench/cost.h"

#include <algorithm>
#include <set>

namespace pivot::cli {

double bytes_of(const Matrix& m) { return static_cast<double>(m.code_bytes() + m.scale_bytes()); }
double bytes_of(const ExpertWeights& e) { return bytes_of(e.w1) + bytes_of(e.w3) + bytes_of(e.w2); }
double bytes_of(const HyperConnectionWeights& w) {
  return 4.0 * static_cast<double>(w.fn.size() + w.base.size() + w.scale.size());
}

Cost product_cost(const Matrix& w, double tokens) {
  return {bytes_of(w), 2.0 * static_cast<double>(w.rows) * static_cast<double>(w.cols) * tokens};
}

Cost seam_cost(const ModelConfig& c, const HyperConnectionWeights& hc, double tokens) {
  const auto streams = static_cast<double>(c.hc_mult), width = static_cast<double>(c.hidden_size);
  const double post = 2.0 * streams * (streams + 1.0) * width, pre = 2.0 * streams * width;
  return {bytes_of(hc), (2.0 * static_cast<double>(hc.fn.size()) + post + pre) * tokens};
}

Cost latent_cost(const AttentionWeights& w, double tokens) {
  Cost cost = product_cost(w.wq_a, tokens) + product_cost(w.wkv, tokens);
  const auto add = [&](const CompressorWeights& compressor) {
    cost += product_cost(compressor.wkv, tokens) + product_cost(compressor.wgate, tokens);
  };
  if (w.compressor) add(*w.compressor);
  if (w.indexer) {
    cost += product_cost(w.indexer->weights_proj, tokens);
    add(w.indexer->compressor);
  }
  return cost;
}

Cost query_cost(const AttentionWeights& w, double tokens) {
  Cost cost = product_cost(w.wq_b, tokens);
  if (w.indexer) cost += product_cost(w.indexer->wq_b, tokens);
  return cost;
}

Cost output_cost(const AttentionWeights& w, double tokens) {
  return product_cost(w.wo_a, tokens) + product_cost(w.wo_b, tokens);
}

Cost experts_cost(const MoeWeights& w, std::span<const std::int32_t> ids, double tokens) {
  const auto products = [](const ExpertWeights& e, double count) {
    return product_cost(e.w1, count) + product_cost(e.w3, count) + product_cost(e.w2, count);
  };
  Cost cost = products(w.shared, tokens);
  for (const std::int32_t id : std::set<std::int32_t>(ids.begin(), ids.end()))
    cost += products(w.experts[static_cast<std::size_t>(id)],
                     static_cast<double>(std::count(ids.begin(), ids.end(), id)));
  return cost;
}

Cost attention_cost(const ModelConfig& c, double rows, double read_rows, double row_bytes) {
  return {read_rows * row_bytes,
          4.0 * static_cast<double>(c.num_attention_heads) * static_cast<double>(c.head_dim) * rows};
}

Cost index_cost(const ModelConfig& c, double entries, double read_entries, double key_bytes) {
  return {read_entries * key_bytes,
          2.0 * static_cast<double>(c.index_n_heads) * static_cast<double>(c.index_head_dim) * entries};
}

double visible_rows(const ModelConfig& c, int ratio, std::int64_t position, std::int64_t topk) {
  std::int64_t rows = std::min(position + 1, c.sliding_window);
  if (ratio != 0) {
    const std::int64_t entries = (position + 1) / ratio;
    rows += ratio == 4 && topk > 0 ? std::min(entries, topk) : entries;
  }
  return static_cast<double>(rows);
}

double visible_rows(const ModelConfig& c, int ratio, std::int64_t begin, std::int64_t end,
                    std::int64_t topk) {
  double rows = 0;
  for (std::int64_t position = begin; position < end; ++position)
    rows += visible_rows(c, ratio, position, topk);
  return rows;
}

Bound bound_of(const Cost& cost, double read_bytes_per_second, double flops_per_second) {
  const double memory = cost.bytes / read_bytes_per_second, compute = cost.flops / flops_per_second;
  return {std::max(memory, compute), memory >= compute};
}

}  // namespace pivot::cli
