#include "recall/acceptance_tensors.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "numeric/formats.h"
#include "numeric/quantize.h"
#include "ops/cpu/reference/hyper_connection.h"
#include "ops/cpu/reference/linear.h"
#include "ops/cpu/reference/rope.h"
#include "ops/cpu/reference/router.h"
#include "ops/rope.h"
#include "recall/draws.h"
#include "recall/probe_shadow.h"

namespace pivot::recall {
namespace {

using reference::RopeAngles;
using reference::Rounding;

// An independent decoder: no table and no function of numeric/.
double decode_e2m1(unsigned code) {
  static constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8u) != 0 ? -kMagnitudes[code & 7u] : kMagnitudes[code & 7u];
}

// Uniform in [-width, width].
float draw(Draws& draws, double width) {
  return static_cast<float>(width * (static_cast<double>(draws.below(1u << 20)) / (1u << 19) - 1));
}

// The combination matrix of specification 2.2 in double, from the text alone: softmax of the rows, eps on
// top, then columns and rows normalised in turn, ending with the columns.
std::vector<double> sinkhorn_in_double(const std::vector<double>& logits, int n, int iterations, double eps) {
  std::vector<double> y(logits);
  for (int r = 0; r < n; ++r) {
    double sum = 0;
    const double most = *std::max_element(logits.begin() + r * n, logits.begin() + (r + 1) * n);
    for (int c = 0; c < n; ++c)
      sum += y[static_cast<std::size_t>(r * n + c)] =
          std::exp(logits[static_cast<std::size_t>(r * n + c)] - most);
    for (int c = 0; c < n; ++c)
      y[static_cast<std::size_t>(r * n + c)] = y[static_cast<std::size_t>(r * n + c)] / sum + eps;
  }
  for (int step = 0; step < 2 * iterations - 1; ++step) {
    const bool columns = step % 2 == 0;
    for (int a = 0; a < n; ++a) {
      const auto at = [&](int b) -> double& {
        return y[static_cast<std::size_t>(columns ? b * n + a : a * n + b)];
      };
      double sum = eps;
      for (int b = 0; b < n; ++b) sum += at(b);
      for (int b = 0; b < n; ++b) at(b) /= sum;
    }
  }
  return y;
}

double sqrt_softplus_in_double(double z) { return std::sqrt(z > 30 ? z : std::log1p(std::exp(z))); }

}  // namespace

Finding check_fp4_decoding(const ModelWeights& weights) {
  std::int64_t rows = 0;
  for (std::size_t l = 0; l < weights.layers.size(); ++l)
    for (const Matrix* w : {&weights.layers[l].ffn.experts[0].w1, &weights.layers[l].ffn.experts[0].w2}) {
      if (w->format != MatrixFormat::kFP4)
        return skipped(fmt::format("the routed experts are {}, not FP4", to_string(w->format)));
      std::vector<float> row(static_cast<std::size_t>(w->cols));
      for (std::int64_t r = 0; r < std::min<std::int64_t>(w->rows, 16); ++r, ++rows) {
        reference::dequantize_row(*w, r, row.data());
        for (std::int64_t c = 0; c < w->cols; ++c) {
          const auto byte = std::to_integer<unsigned>(w->codes[(r * w->cols + c) / 2]);
          const auto scale = std::to_integer<int>(w->scales[(r * w->cols + c) / kFp4GroupCols]);
          if (scale == 0xff)
            return failed(fmt::format("layer {}: a scale byte of row {} is 0xff (NaN)", l, r));
          const double wanted = std::ldexp(decode_e2m1(c % 2 == 0 ? byte & 15u : byte >> 4), scale - 127);
          if (row[static_cast<std::size_t>(c)] != static_cast<float>(wanted))
            return failed(
                fmt::format("layer {}, row {}, column {}: decoded {}, an independent decoder says {}", l, r,
                            c, row[static_cast<std::size_t>(c)], wanted));
        }
      }
    }
  return pass(fmt::format("{} rows of real experts equal an independent decoder's, no NaN scale", rows));
}

Finding check_scale_formula(const ModelWeights&) {
  for (int k = -8; k <= 8; ++k) {
    const auto value = [k](double a) { return static_cast<float>(std::ldexp(a, k)); };
    const int expected = 127 + k;
    const int next = expected + 1;
    // The next BF16 value above 448 and 6 asks for twice the scale.
    if (fp8_group_scale(value(448)) != expected || fp8_group_scale(value(450)) != next ||
        fp4_group_scale(value(6)) != expected || fp4_group_scale(value(6.03125)) != next)
      return failed(fmt::format("the scale of 448*2^{0} or 6*2^{0}, or of the next value, is wrong", k));
  }
  static constexpr std::pair<float, float> kTies[] = {{0.25f, 0}, {0.75f, 1}, {1.25f, 1}, {1.75f, 2},
                                                      {2.5f, 2},  {3.5f, 4},  {5, 4}};
  for (const auto& [from, to] : kTies) {
    std::vector<float> group(32, 0.0f);
    group[0] = 6;  // scale 1
    group[1] = from;
    quantize_dequantize_e2m1(group, 32);
    if (group[1] != to) return failed(fmt::format("e2m1 rounds {} to {}, not to {}", from, group[1], to));
  }
  return pass("exact at 448*2^k and 6*2^k, doubled just above, ties to even");
}

Finding check_rope(const ModelWeights& weights) {
  const ModelConfig& config = weights.config;
  const std::vector<float> plain = rope_frequencies(config.rope_main, config.qk_rope_head_dim);
  const std::vector<float> yarn = rope_frequencies(config.rope_compress, config.qk_rope_head_dim);
  if (plain == yarn) return failed("layers with and without compression have the same frequencies");
  const RopeConfig& c = config.rope_compress;
  std::string table = "the published table is for theta 160000 and factor 16 over 65536: not this model";
  if (c.theta == 160000 && c.factor == 16.0 && c.original_max_position_embeddings == 65536 &&
      config.qk_rope_head_dim == 64) {
    static constexpr std::pair<std::size_t, double> kTable[] = {
        {15, 0.00363554}, {16, 0.00226563}, {20, 0.000296978}, {24, 1.95312e-5}, {31, 5.68053e-7}};
    for (const auto& [i, wanted] : kTable)
      if (std::fabs(yarn[i] - wanted) > 2e-5 * wanted)
        return failed(fmt::format("w_{} is {}, specification 2.3 says {}", i, yarn[i], wanted));
    table = "the table of specification 2.3 holds";
  }
  for (const std::int32_t position : {0, 1, 127, 65535, 1'000'000}) {
    const RopeAngles angles(yarn.data(), static_cast<std::int64_t>(yarn.size()), position);
    for (std::size_t i = 0; i < yarn.size(); ++i) {
      const float angle = static_cast<float>(position) * yarn[i];
      if (std::fabs(angles.cos[i] - std::cos(static_cast<double>(angle))) > 1e-6)
        return failed(fmt::format("cos of pair {} at position {} is {}", i, position, angles.cos[i]));
    }
    std::vector<float> x(2 * yarn.size()), y;
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i + 1));
    y = x;
    reference::rotate(y.data(), angles, false, Rounding(Activations::kF32));
    reference::rotate(y.data(), angles, true, Rounding(Activations::kF32));
    if (relative_difference(y, x) > 1e-6)
      return failed(fmt::format("forward and inverse at position {} differ from the identity by {:.2g}",
                                position, relative_difference(y, x)));
  }
  return pass("forward and inverse are the identity up to position 1,000,000; the two layer kinds differ; " +
              table);
}

Finding check_hadamard(const ModelWeights& weights) {
  std::vector<float> x(static_cast<std::size_t>(weights.config.index_head_dim)), y;
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(3 * i + 1));
  y = x;
  hadamard(y);
  const bool changed = relative_difference(y, x) > 0.1;
  hadamard(y);
  if (!changed || relative_difference(y, x) > 1e-6) return failed("H(H(x)) is not x");
  return pass("H(H(x)) = x; that keys and queries both have it is part of the audit");
}

Finding check_sinkhorn(const ModelWeights& weights) {
  const ModelConfig& config = weights.config;
  const auto n = static_cast<int>(config.hc_mult);
  const auto size = static_cast<std::size_t>(n);
  Draws draws(5);
  double worst = 0, worst_sum = 0;
  std::int64_t matrices = 0;
  for (const LayerWeights& layer : weights.layers)
    for (const HyperConnectionWeights* hc : {&layer.attn_hc, &layer.ffn_hc}) {
      std::vector<float> mixes((2 + size) * size), pre(size), post(size), comb(size * size);
      for (float& mix : mixes) mix = draw(draws, 3);
      reference::hc_coefficients(mixes.data(), hc->scale, hc->base, n,
                                 static_cast<int>(config.hc_sinkhorn_iters),
                                 static_cast<float>(config.hc_eps), pre.data(), post.data(), comb.data());
      std::vector<double> logits(size * size);
      for (std::size_t i = 0; i < logits.size(); ++i)
        logits[i] = static_cast<double>(mixes[2 * size + i]) * hc->scale[2] + hc->base[2 * size + i];
      const std::vector<double> wanted = sinkhorn_in_double(
          logits, n, static_cast<int>(config.hc_sinkhorn_iters), static_cast<double>(config.hc_eps));
      for (std::size_t i = 0; i < wanted.size(); ++i) worst = std::max(worst, std::fabs(wanted[i] - comb[i]));
      for (int c = 0; c < n; ++c) {
        double sum = 0;
        for (int r = 0; r < n; ++r) sum += comb[static_cast<std::size_t>(r * n + c)];
        worst_sum = std::max(worst_sum, std::fabs(sum - 1));
      }
      ++matrices;
    }
  const std::string text = fmt::format(
      "{} matrices of real scales and bases: within {:.2g} of an independent double, columns sum to "
      "1 within {:.2g}",
      matrices, worst, worst_sum);
  return worst < 1e-5 && worst_sum < 1e-5 ? pass(text) : failed(text);
}

Finding check_router(const ModelWeights& weights) {
  const ModelConfig& config = weights.config;
  const auto experts = static_cast<std::size_t>(config.n_routed_experts);
  const auto chosen = static_cast<std::size_t>(config.num_experts_per_tok);
  const reference::RouterRule rule{static_cast<int>(chosen), config.norm_topk_prob,
                                   static_cast<float>(config.routed_scaling_factor)};
  Draws draws(11);
  std::int64_t tokens = 0, tables = 0;
  for (std::size_t l = 0; l < weights.layers.size(); ++l) {
    const MoeWeights& moe = weights.layers[l].ffn;
    const bool hashed = !moe.tid2eid.empty();
    if (hashed) {
      // Of specification Q11: an expert named twice would count twice.
      for (std::size_t row = 0; row + chosen <= moe.tid2eid.size(); row += chosen) {
        std::vector<std::int32_t> ids(moe.tid2eid.begin() + static_cast<std::ptrdiff_t>(row),
                                      moe.tid2eid.begin() + static_cast<std::ptrdiff_t>(row + chosen));
        std::sort(ids.begin(), ids.end());
        if (std::adjacent_find(ids.begin(), ids.end()) != ids.end())
          return failed(
              fmt::format("layer {}: the table names an expert twice for token {}", l, row / chosen));
        ++tables;
      }
    }
    for (int token = 0; token < 16; ++token, ++tokens) {
      std::vector<float> z(experts);
      for (float& value : z) value = draw(draws, 4);
      z[experts - 1] = z[0];  // a tie
      const std::size_t row = draws.below(hashed ? moe.tid2eid.size() / chosen : 1) * chosen;
      const std::span<const std::int32_t> table =
          hashed ? moe.tid2eid.subspan(row, chosen) : std::span<const std::int32_t>();
      std::vector<std::int32_t> ids(chosen), wanted(experts);
      std::vector<float> found(chosen);
      reference::route_token(z, hashed ? FloatSpan() : moe.bias, table, rule, ids.data(), found.data());
      std::iota(wanted.begin(), wanted.end(), 0);
      const auto score = [&](std::int32_t e) {
        return static_cast<float>(sqrt_softplus_in_double(z[static_cast<std::size_t>(e)])) +
               (moe.bias.empty() ? 0.0f : moe.bias[static_cast<std::size_t>(e)]);
      };
      if (hashed)
        wanted.assign(table.begin(), table.end());
      else
        std::stable_sort(wanted.begin(), wanted.end(), [&](auto a, auto b) { return score(a) > score(b); });
      wanted.resize(chosen);
      std::sort(wanted.begin(), wanted.end());
      if (ids != wanted)
        return failed(
            fmt::format("layer {}: the experts chosen for a drawn token are not those with the best "
                        "scores (or of the table)",
                        l));
      double sum = 0, total = 0;
      for (const std::int32_t e : ids) sum += sqrt_softplus_in_double(z[static_cast<std::size_t>(e)]);
      for (std::size_t k = 0; k < chosen; ++k) {
        const double weight = sqrt_softplus_in_double(z[static_cast<std::size_t>(ids[k])]) /
                              (rule.normalize ? sum : 1) * rule.route_scale;
        if (std::fabs(weight - found[k]) > 1e-5)
          return failed(fmt::format("layer {}: a weight is {}, its score alone (no bias) gives {}", l,
                                    found[k], weight));
        total += found[k];
      }
      if (rule.normalize && std::fabs(total - rule.route_scale) > 1e-5)
        return failed(fmt::format("layer {}: weights sum to {}, not to {}", l, total, rule.route_scale));
    }
  }
  return pass(fmt::format(
      "{} drawn tokens: experts and weights as an independent double chooses, the bias in no weight; "
      "{} rows of hash tables name no expert twice",
      tokens, tables));
}

}  // namespace pivot::recall
