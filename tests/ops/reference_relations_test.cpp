// Relations of docs/public-faults.md that need no golden values, exactly: chunked = whole (M1), prefill +
// decode = longer prefill (M2), in a batch = alone (M8); and independence of threads, page order and ring
// size. Not one bit may differ, neither in any op's output nor in the cached state.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "ops/cpu/reference/backend.h"
#include "ops/layer_rig.h"
#include "ops/random_layer.h"

namespace pivot {
namespace {

using test::AttentionStep;
using test::Chunk;
using test::LayerRig;
using test::RandomLayer;
using test::RigOptions;

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

// What a run leaves behind: everything every op wrote per token, and the final state.
struct Trace {
  std::vector<float> kv, q, index_q, index_weights, o, out;
  std::vector<std::int32_t> selected, count;
  std::vector<std::uint8_t> state;

  void append(const AttentionStep& step) {
    const auto add = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    add(kv, step.kv);
    add(q, step.q);
    add(index_q, step.index_q);
    add(index_weights, step.index_weights);
    add(o, step.o);
    add(out, step.out);
    add(selected, step.selected);
    add(count, step.count);
  }
};

void expect_same(const Trace& a, const Trace& b, const std::string& what) {
  EXPECT_TRUE(same_bits(a.kv, b.kv)) << what;
  EXPECT_TRUE(same_bits(a.q, b.q)) << what;
  EXPECT_TRUE(same_bits(a.index_q, b.index_q)) << what;
  EXPECT_TRUE(same_bits(a.index_weights, b.index_weights)) << what;
  EXPECT_EQ(a.selected, b.selected) << what;
  EXPECT_EQ(a.count, b.count) << what;
  EXPECT_TRUE(same_bits(a.o, b.o)) << what;
  EXPECT_TRUE(same_bits(a.out, b.out)) << what;
  EXPECT_EQ(a.state, b.state) << what;
}

std::vector<float> slice(const std::vector<float>& x, std::int64_t width, int begin, int count) {
  return {x.begin() + begin * width, x.begin() + (begin + count) * width};
}

Trace run_chunks(Backend& backend, const RandomLayer& layer, const std::vector<float>& x,
                 const std::vector<int>& chunks, RigOptions options = {}) {
  LayerRig rig(backend, layer.config, layer.weights, 0, options);
  Trace run;
  int at = 0;
  for (const int tokens : chunks) {
    run.append(rig.attention({{0, tokens}}, slice(x, layer.config.hidden_size, at, tokens)));
    at += tokens;
  }
  run.state = rig.state_bytes(0);
  return run;
}

std::vector<int> equal_chunks(int total, int limit) {
  std::vector<int> chunks;
  for (int at = 0; at < total; at += limit) chunks.push_back(std::min(limit, total - at));
  return chunks;
}

class Relations : public testing::TestWithParam<int> {  // the compress ratio
 protected:
  Relations() {
    test::RandomLayerOptions options;
    options.ratio = GetParam();
    options.num_attention_heads = 2;
    layer_ = test::make_random_layer(options);
    x_ = layer_->storage.activations(520 * layer_->config.hidden_size);
  }
  std::unique_ptr<RandomLayer> layer_;
  std::vector<float> x_;
  std::unique_ptr<Backend> backend_ = make_reference_backend(1);
};

TEST_P(Relations, ChunkedPrefillEqualsWhole) {
  const int total = 389;
  const Trace whole = run_chunks(*backend_, *layer_, x_, {total});
  for (const int limit : {388, 257, 256, 255, 130, 129, 128, 127, 100, 64, 7, 5, 4, 3, 2, 1})
    expect_same(run_chunks(*backend_, *layer_, x_, equal_chunks(total, limit)), whole,
                fmt::format("chunks of {}", limit));
  expect_same(run_chunks(*backend_, *layer_, x_, {1, 126, 3, 125, 1, 2, 131}), whole, "ragged chunks");
}

TEST_P(Relations, PrefillThenDecodeEqualsLongerPrefill) {
  // Every residue mod 4 and the edges of 4, 128 and 256 (fault B01).
  for (const int n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 125, 126, 127, 128, 129, 130, 131, 254, 255, 256, 257}) {
    const Trace longer = run_chunks(*backend_, *layer_, x_, {n + 6});
    std::vector<int> chunks = {n};
    chunks.insert(chunks.end(), 6, 1);
    expect_same(run_chunks(*backend_, *layer_, x_, chunks), longer, fmt::format("prefill of {}", n));
  }
}

TEST_P(Relations, InABatchEqualsAlone) {
  const std::int64_t width = layer_->config.hidden_size;
  const std::vector<float> y = layer_->storage.activations(300 * width);
  const Trace alone_x = run_chunks(*backend_, *layer_, x_, {200, 1, 99});
  const Trace alone_y = run_chunks(*backend_, *layer_, y, {77, 133, 1});
  RigOptions options;
  options.sequences = 2;
  options.reversed_pages = true;
  LayerRig rig(*backend_, layer_->config, layer_->weights, 0, options);
  Trace from_x, from_y;
  int at_x = 0, at_y = 0;
  const auto step = [&](int nx, int ny, bool y_first) {
    std::vector<float> both = slice(y_first ? y : x_, width, y_first ? at_y : at_x, y_first ? ny : nx);
    const std::vector<float> second =
        slice(y_first ? x_ : y, width, y_first ? at_x : at_y, y_first ? nx : ny);
    both.insert(both.end(), second.begin(), second.end());
    const std::vector<Chunk> chunks =
        y_first ? std::vector<Chunk>{{1, ny}, {0, nx}} : std::vector<Chunk>{{0, nx}, {1, ny}};
    const AttentionStep whole = rig.attention(chunks, both);
    const int tokens = nx + ny;
    const auto part = [&](int begin, int count) {
      const auto cut = [&](const auto& v) {
        const auto per = static_cast<std::int64_t>(v.size()) / tokens;
        return std::decay_t<decltype(v)>(v.begin() + begin * per, v.begin() + (begin + count) * per);
      };
      AttentionStep one;
      one.kv = cut(whole.kv);
      one.q = cut(whole.q);
      one.index_q = cut(whole.index_q);
      one.index_weights = cut(whole.index_weights);
      one.o = cut(whole.o);
      one.out = cut(whole.out);
      one.selected = cut(whole.selected);
      one.count = cut(whole.count);
      return one;
    };
    from_x.append(part(y_first ? ny : 0, nx));
    from_y.append(part(y_first ? 0 : nx, ny));
    at_x += nx;
    at_y += ny;
  };
  step(200, 77, false);
  step(1, 133, true);
  step(99, 1, false);
  from_x.state = rig.state_bytes(0);
  from_y.state = rig.state_bytes(1);
  expect_same(from_x, alone_x, "first sequence");
  expect_same(from_y, alone_y, "second sequence");
}

TEST_P(Relations, ThreadsPagesAndRingSizeDoNotMatter) {
  const Trace base = run_chunks(*backend_, *layer_, x_, {150, 1, 1, 70});
  for (const int threads : {2, 3}) {
    const auto backend = make_reference_backend(threads);
    expect_same(run_chunks(*backend, *layer_, x_, {150, 1, 1, 70}), base, fmt::format("{} threads", threads));
  }
  RigOptions options;
  options.page_rows = 5;
  options.reversed_pages = true;
  options.extra_ring_rows = 9;
  expect_same(run_chunks(*backend_, *layer_, x_, {150, 1, 1, 70}, options), base, "small reversed pages");
}

TEST_P(Relations, HoldForEveryKnob) {
  for (const char* setting :
       {"activations=f32", "kv=bf16", "kv_layout=wide", "index_keys=fp8", "index_keys=bf16", "index_topk=all",
        "index_topk=3", "index_score=bf16", "dense_act=bf16", "wo_a_act=fp8"}) {
    RigOptions options;
    const std::vector<std::string> assignments = {setting};
    ASSERT_TRUE(set_knobs(options.knobs, assignments).has_value());
    const Trace whole = run_chunks(*backend_, *layer_, x_, {171}, options);
    expect_same(run_chunks(*backend_, *layer_, x_, {131, 1, 1, 1, 37}, options), whole, setting);
    for (const float value : whole.out) ASSERT_TRUE(std::isfinite(value)) << setting;
  }
}

TEST_P(Relations, PackedCacheEqualsWideCache) {
  // Specification check 10: the packed form holds exactly the values.
  RigOptions wide;
  wide.knobs.kv_layout = KvLayout::kWide;
  Trace a = run_chunks(*backend_, *layer_, x_, {131, 1, 1, 60});
  Trace b = run_chunks(*backend_, *layer_, x_, {131, 1, 1, 60}, wide);
  a.state.clear();
  b.state.clear();
  expect_same(a, b, "packed and wide");
}

TEST_P(Relations, PackedRingHoldsTheBytesOfTheUnroundedRows) {
  // Rounding with the group scales that latent() hands over must give the ring that packing before rounding
  // gives: unrounded rows come from a run with kv=bf16, whose rows up to here are the same.
  RigOptions unrounded;
  unrounded.knobs.kv = KvPrecision::kBf16;
  LayerRig packed_rig(*backend_, layer_->config, layer_->weights, 0, {});
  LayerRig wide_rig(*backend_, layer_->config, layer_->weights, 0, unrounded);
  const std::vector<float> x = slice(x_, layer_->config.hidden_size, 0, 100);
  packed_rig.attention({{0, 100}}, x);
  const AttentionStep rows = wide_rig.attention({{0, 100}}, x);
  const RingView ring = packed_rig.view().window;
  for (int p = 0; p < 100; ++p) {
    std::vector<std::byte> expected(static_cast<std::size_t>(ring.layout.row_bytes()));
    pack_row(ring.layout, rows.kv.data() + p * layer_->config.head_dim, expected.data(),
             expected.data() + ring.layout.data_bytes);
    EXPECT_EQ(std::memcmp(expected.data(), ring.base + ring.layout.data_offset(p),
                          static_cast<std::size_t>(ring.layout.data_bytes)),
              0)
        << p;
    EXPECT_EQ(std::memcmp(expected.data() + ring.layout.data_bytes,
                          ring.base + ring.layout.scale_offset(p, ring.rows),
                          static_cast<std::size_t>(ring.layout.scale_bytes)),
              0)
        << p;
  }
}

INSTANTIATE_TEST_SUITE_P(Ratios, Relations, testing::Values(0, 4, 128),
                         [](const auto& ratio) { return "Ratio" + std::to_string(ratio.param); });

TEST(MoeRelations, ATokenAloneEqualsTheSameTokenInABatch) {
  for (const bool hash : {false, true}) {
    test::RandomLayerOptions options;
    options.hash_routed = hash;
    const auto layer = test::make_random_layer(options);
    const ModelConfig& config = layer->config;
    std::vector<std::int32_t> table;
    if (hash) {
      for (int id = 0; id < 64; ++id) table.insert(table.end(), {(id * 5 + 3) % 6, (id * 5 + 4) % 6});
      layer->weights.ffn.tid2eid = table;
      layer->weights.ffn.bias = {};
    }
    const auto one_thread = make_reference_backend(1);
    const auto two_threads = make_reference_backend(2);
    const LayerContext context{&config, 0, config.ratio(0), nullptr};
    const int tokens = 33;
    const std::vector<float> x = layer->storage.activations(tokens * config.hidden_size);
    std::vector<std::int32_t> ids(tokens), token_ids(tokens);
    for (int t = 0; t < tokens; ++t) token_ids[static_cast<std::size_t>(t)] = (7 * t) % 64;
    const auto run = [&](Backend& backend, int begin, int count) {
      StepBatch batch;
      batch.num_tokens = count;
      batch.token_ids = token_ids.data() + begin;
      std::vector<std::int32_t> experts(static_cast<std::size_t>(count * 2));
      std::vector<float> weights(experts.size()), out(static_cast<std::size_t>(count * config.hidden_size));
      const float* in = x.data() + begin * config.hidden_size;
      backend.route(context, {}, batch, {&layer->weights.ffn, in, experts.data(), weights.data(), nullptr});
      backend.moe(context, {}, batch, {&layer->weights.ffn, in, experts.data(), weights.data(), out.data()});
      return out;
    };
    const std::vector<float> whole = run(*one_thread, 0, tokens);
    EXPECT_TRUE(same_bits(whole, run(*two_threads, 0, tokens)));
    for (int t = 0; t < tokens; ++t)
      EXPECT_TRUE(same_bits(run(*one_thread, t, 1), slice(whole, config.hidden_size, t, 1))) << t;
  }
}

}  // namespace
}  // namespace pivot
