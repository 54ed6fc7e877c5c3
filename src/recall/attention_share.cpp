#include "recall/attention_share.h"

#include <algorithm>
#include <cmath>

#include "recall/device_rows.h"

namespace pivot::recall {
namespace {

// Eight independent sums: the compiler may then use vector registers without reordering one sum.
double dot(const float* a, const float* b, std::int64_t width) {
  float sums[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= width; i += 8)
    for (int lane = 0; lane < 8; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  for (; i < width; ++i) sums[0] += a[i] * b[i];
  double sum = 0;
  for (const float s : sums) sum += s;
  return sum;
}

double kept_mass(const AttentionShare& share, const std::vector<bool>& kept) {
  double mass = 0;
  for (std::size_t j = 0; j < share.entry.size(); ++j) mass += kept[j] ? share.entry[j] : 0;
  return mass;
}

}  // namespace

double AttentionShare::kept_of_entries(const std::vector<bool>& kept) const {
  return entries > 0 ? kept_mass(*this, kept) / entries : 1;
}

double AttentionShare::kept_of_all(const std::vector<bool>& kept) const {
  return heads > 0 ? 1 - (entries - kept_mass(*this, kept)) / static_cast<double>(heads) : 1;
}

std::int64_t first_raw_row(const SequenceSpan& span, std::int64_t window) {
  return std::max<std::int64_t>(0, span.start_position - window + 1);
}

std::vector<float> read_raw_rows(Backend& backend, const ModelConfig& config, const SequenceSpan& span,
                                 const AttentionParams& p) {
  std::vector<float> raw = read_ring(backend, p.cache.window, span.slot,
                                     first_raw_row(span, config.sliding_window), span.start_position);
  const std::vector<float> own = read_acts(backend, p.kv, std::int64_t{span.first_token} * config.head_dim,
                                           std::int64_t{span.num_tokens} * config.head_dim);
  raw.insert(raw.end(), own.begin(), own.end());
  return raw;
}

AttentionShare attention_share(Backend& backend, const ModelConfig& config, const SequenceSpan& span,
                               std::int32_t token, const AttentionParams& p, const EntryRowFn& row,
                               const std::vector<float>& raw, std::span<const float> sinks,
                               std::int64_t first_head, std::int64_t head_step) {
  const std::int64_t width = config.head_dim;
  const std::int64_t position = span.start_position + token;
  const std::int64_t visible = (position + 1) / 4;
  const std::int64_t first = first_raw_row(span, config.sliding_window);
  const std::int64_t begin = std::max<std::int64_t>(0, position - config.sliding_window + 1);
  const std::vector<float> queries =
      read_acts(backend, p.q, (std::int64_t{span.first_token} + token) * config.num_attention_heads * width,
                config.num_attention_heads * width);
  const double scale = 1 / std::sqrt(static_cast<double>(width));
  std::vector<std::int64_t> heads;
  for (std::int64_t h = first_head; h < config.num_attention_heads; h += head_step) heads.push_back(h);
  // A row is read once for all heads, while it is in the nearest cache.
  std::vector<std::vector<double>> logits(heads.size(),
                                          std::vector<double>(static_cast<std::size_t>(visible)));
  for (std::int64_t j = 0; j < visible; ++j) {
    const float* values = row(j);
    for (std::size_t i = 0; i < heads.size(); ++i)
      logits[i][static_cast<std::size_t>(j)] = dot(queries.data() + heads[i] * width, values, width) * scale;
  }
  AttentionShare share;
  share.heads = static_cast<std::int64_t>(heads.size());
  share.entry.resize(static_cast<std::size_t>(visible));
  for (std::size_t i = 0; i < heads.size(); ++i) {
    const float* head = queries.data() + heads[i] * width;
    const double sink = sinks[static_cast<std::size_t>(heads[i])];
    double maximum = sink;
    for (const double logit : logits[i]) maximum = std::max(maximum, logit);
    std::vector<double> window;
    for (std::int64_t at = begin; at <= position; ++at) {
      window.push_back(dot(head, raw.data() + (at - first) * width, width) * scale);
      maximum = std::max(maximum, window.back());
    }
    double total = std::exp(sink - maximum);
    for (const double logit : window) total += std::exp(logit - maximum);
    double mass = 0;
    for (double& logit : logits[i]) mass += logit = std::exp(logit - maximum);
    total += mass;
    for (std::size_t j = 0; j < share.entry.size(); ++j) share.entry[j] += logits[i][j] / total;
  }
  // In the order of kept_mass, so that keeping everything keeps exactly all of it.
  for (const double mass : share.entry) share.entries += mass;
  return share;
}

std::vector<bool> kept_entries(Backend& backend, const AttentionParams& p, std::int64_t token_of_step,
                               std::int64_t visible) {
  std::vector<bool> kept(static_cast<std::size_t>(visible), p.selected == nullptr);
  if (p.selected == nullptr) return kept;
  const std::int32_t count = read_ints(backend, p.selected_count, token_of_step, 1)[0];
  for (const std::int32_t j : read_ints(backend, p.selected, token_of_step * p.topk, count))
    if (j >= 0 && j < visible) kept[static_cast<std::size_t>(j)] = true;
  return kept;
}

}  // namespace pivot::recall
