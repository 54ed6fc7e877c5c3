// Index scores, cached index keys and the exact top-k (specification 2.6, check 9; faults B02, B05, B12,
// B38).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "numeric/quantize.h"
#include "ops/cpu/reference/backend.h"
#include "ops/cpu/reference/cache_rows.h"
#include "ops/cpu/reference/indexer.h"
#include "ops/random_layer.h"

namespace pivot::reference {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Runs select_topk and checks the contract against a plain sort.
std::vector<std::int32_t> select(const std::vector<float>& scores, std::int32_t k) {
  std::vector<std::int32_t> selected(static_cast<std::size_t>(k) + 1, 12345);
  const std::int32_t count = select_topk(scores, k, selected.data());
  EXPECT_EQ(selected.back(), 12345) << "wrote past k";
  EXPECT_EQ(count, std::min<std::int64_t>(k, static_cast<std::int64_t>(scores.size())));
  for (std::int32_t i = count; i < k; ++i) EXPECT_EQ(selected[static_cast<std::size_t>(i)], -1);
  selected.resize(static_cast<std::size_t>(count));
  EXPECT_TRUE(std::is_sorted(selected.begin(), selected.end()));
  EXPECT_EQ(std::set<std::int32_t>(selected.begin(), selected.end()).size(), selected.size());

  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    const float x = scores[static_cast<std::size_t>(a)], y = scores[static_cast<std::size_t>(b)];
    return std::isnan(y) ? !std::isnan(x) : x > y;  // NaN last; a comparison with NaN on the left is false
  });
  std::vector<std::int32_t> expected;
  for (std::int32_t i = 0; i < count; ++i) expected.push_back(order[static_cast<std::size_t>(i)]);
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(selected, expected);
  return selected;
}

TEST(Topk, ManyTiesAndInfinities) {
  // Fault B02, its cases.
  std::vector<float> scores(8320, 0.0f);
  for (int j = 0; j < 100; ++j) scores[static_cast<std::size_t>(83 * j)] = 1.0f + static_cast<float>(j);
  const std::vector<std::int32_t> selected = select(scores, 2048);
  for (int j = 0; j < 100; ++j) EXPECT_TRUE(std::binary_search(selected.begin(), selected.end(), 83 * j));
  select(std::vector<float>(9000, 0.0f), 1024);
  scores.assign(5000, 0.0f);
  for (const std::size_t i : {7u, 1500u, 4999u}) scores[i] = kInfinity;
  for (std::size_t i = 0; i < 7; ++i) scores[100 + 600 * i] = 3.0f;
  select(scores, 512);
  scores.assign(5000, 1.0f);
  for (std::size_t i = 0; i < 600; ++i) scores[i * 8] = kNan;
  for (const std::int32_t i : select(scores, 512))
    EXPECT_FALSE(std::isnan(scores[static_cast<std::size_t>(i)]));
  for (const std::size_t n : {std::size_t{300}, std::size_t{512}, std::size_t{513}, std::size_t{0}})
    select(std::vector<float>(n, 0.25f), 512);
}

TEST(Topk, NanIsBelowMinusInfinity) {
  EXPECT_EQ(select({kNan, -kInfinity, kNan, -1e30f}, 2), (std::vector<std::int32_t>{1, 3}));
  EXPECT_EQ(select({kNan, kNan, kNan}, 2), (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(select({0.0f, -0.0f, 0.0f}, 2), (std::vector<std::int32_t>{0, 1}));
}

TEST(Topk, DropsExactlyTheLowestAt513) {
  std::mt19937 random(1);
  std::vector<float> scores(513);
  for (float& score : scores) score = static_cast<float>(random() % 100000) + 1.0f;
  scores[200] = 0.5f;
  const std::vector<std::int32_t> selected = select(scores, 512);
  EXPECT_FALSE(std::binary_search(selected.begin(), selected.end(), 200));
}

TEST(Topk, RandomRowsOfEveryLength) {
  std::mt19937 random(2);
  for (const int n : {1, 2, 19, 1024, 6000, 16384, 16448, 65536, 262144}) {
    std::vector<float> scores(static_cast<std::size_t>(n));
    const int kinds = n % 5 == 0 ? 7 : 1 << 20;  // few distinct values, or many
    for (float& score : scores)
      score = static_cast<float>(static_cast<int>(random() % static_cast<unsigned>(kinds)) - kinds / 3);
    for (const int k : {1, 16, 512, 1024}) select(scores, k);
    select(scores, n);
  }
  // All in one exponent bucket, with one outlier.
  std::vector<float> bucket(20000);
  for (float& score : bucket) score = 1.0f + static_cast<float>(random() % 1000) * 0x1p-23f;
  bucket[12345] = 100.0f;
  select(bucket, 512);
}

TEST(IndexScores, MatchDoubleAndKeepNegativeWeights) {
  test::RandomMatrices make(4);
  const std::vector<float> q = make.activations(8 * 64), k = make.activations(77 * 64),
                           w = make.activations(8);
  IndexKeys keys(77, 64);
  for (std::int64_t j = 0; j < 77; ++j) keys.set(j, k.data() + j * 64);
  std::vector<float> scores(77);
  index_scores(q.data(), w.data(), 8, keys, 77, ScorePrecision::kF32, scores.data());
  bool negative = false;
  for (std::size_t j = 0; j < 77; ++j) {
    double sum = 0, size = 0;
    for (std::size_t h = 0; h < 8; ++h) {
      double dot = 0;
      for (std::size_t c = 0; c < 64; ++c) dot += static_cast<double>(q[h * 64 + c]) * k[j * 64 + c];
      sum += w[h] * std::max(dot, 0.0);
      size += std::fabs(w[h] * dot);
    }
    EXPECT_NEAR(scores[j], sum, 1e-5 * size);
    negative = negative || sum < 0;
  }
  EXPECT_TRUE(negative);  // relu acts before the weight, so sums may be negative
}

// A page pool of index keys with a page table, filled through the oracle's own writer.
struct KeyPages {
  std::vector<std::byte> storage;
  std::vector<std::int32_t> table;
  PagedView view;

  KeyPages(const RowLayout& layout, std::int32_t page_rows, int entries, bool reversed) {
    const int pages = (entries + page_rows - 1) / page_rows;
    storage.assign(static_cast<std::size_t>(pages * layout.page_bytes(page_rows)), std::byte{0x7f});
    for (int i = 0; i < pages; ++i) table.push_back(reversed ? pages - 1 - i : i);
    view = {storage.data(), layout.page_bytes(page_rows), page_rows, layout, table.data(), pages};
  }
};

TEST(IndexKeysInPages, OneHotKeysScoreTheirOwnDimInEveryLayout) {
  // Fault B05: key t = one-hot at dim t mod 128 with value 2^(t div 128).
  struct Case {
    IndexPrecision precision;
    RowLayout layout;
  };
  const Case cases[] = {{IndexPrecision::kFp4, index_fp4_layout(128)},
                        {IndexPrecision::kFp8, index_fp8_layout(128)},
                        {IndexPrecision::kBf16, bf16_layout(128)},
                        {IndexPrecision::kFp4, bf16_layout(128)},
                        {IndexPrecision::kFp8, f32_layout(128)}};
  test::RandomLayerOptions options;
  options.index_n_heads = 1;
  options.index_head_dim = 128;
  const auto layer = test::make_random_layer(options);
  const auto backend = make_reference_backend(1);
  for (const Case& c : cases) {
    for (const std::int32_t page_rows : {64, 256, 7}) {
      for (const bool reversed : {false, true}) {
        KeyPages pages(c.layout, page_rows, 300, reversed);
        IndexKeys keys(300, 128);
        for (int t = 0; t < 300; ++t) {
          std::vector<float> key(128, 0.0f);
          key[static_cast<std::size_t>(t % 128)] = static_cast<float>(1 << (t / 128));
          const RowPointers row = paged_row(pages.view, 0, t);
          store_index(c.layout, c.precision, key.data(), row.data, row.scales);
        }
        for (int t = 0; t < 300; ++t) {
          std::vector<float> key(128);
          read_paged_row(pages.view, 0, t, key.data());
          keys.set(t, key.data());
        }
        for (int d = 0; d < 128; ++d) {
          std::vector<float> q(128, 0.0f), scores(300);
          q[static_cast<std::size_t>(d)] = 1.0f;
          const float weight = 1.0f;
          index_scores(q.data(), &weight, 1, keys, 300, ScorePrecision::kF32, scores.data());
          for (int t = 0; t < 300; ++t)
            ASSERT_EQ(scores[static_cast<std::size_t>(t)],
                      t % 128 == d ? static_cast<float>(1 << (t / 128)) : 0.0f)
                << t << " " << d;

          // The back-end's own reader: the last of 1200 tokens sees all 300 entries and keeps the best two.
          const SequenceSpan span{0, 1, 1199, 0, 0};
          StepBatch batch;
          batch.num_tokens = batch.num_spans = 1;
          batch.spans = batch.host_spans = &span;
          std::int32_t selected[2], count = 0;
          IndexSelectParams p{q.data(), &weight, pages.view, 2, selected, &count};
          backend->index_select({&layer->config, 0, 4, nullptr}, {}, batch, p);
          ASSERT_EQ(count, 2);
          const int best = d + 256 < 300 ? 256 : 128;
          ASSERT_EQ(selected[0], d + best - 128);
          ASSERT_EQ(selected[1], d + best);
        }
      }
    }
  }
}

TEST(IndexSelect, EarlyRowsTakeEverythingAndTheFirstDropIsTheLowest) {
  // With k = 8 the first drop happens at position 35 (entry 9), as 2051 does for 512 (fault B12).
  const auto layer = test::make_random_layer({});
  const ModelConfig& config = layer->config;
  const auto backend = make_reference_backend(1);
  const int tokens = 60;
  KeyPages pages(index_fp4_layout(64), 64, tokens / 4, false);
  for (int j = 0; j < tokens / 4; ++j) {
    const std::vector<float> key = layer->storage.activations(64);
    const RowPointers row = paged_row(pages.view, 0, j);
    store_index(pages.view.layout, IndexPrecision::kFp4, key.data(), row.data, row.scales);
  }
  const std::vector<float> q = layer->storage.activations(tokens * config.index_n_heads * 64);
  const std::vector<float> weights = layer->storage.activations(tokens * config.index_n_heads);
  const SequenceSpan span{0, tokens, 0, 0, 0};
  StepBatch batch;
  batch.num_tokens = tokens;
  batch.num_spans = 1;
  batch.spans = batch.host_spans = &span;
  std::vector<std::int32_t> selected(tokens * 8), count(tokens);
  backend->index_select({&config, 0, 4, nullptr}, {}, batch,
                        {q.data(), weights.data(), pages.view, 8, selected.data(), count.data()});
  IndexKeys keys(tokens / 4, 64);
  for (int j = 0; j < tokens / 4; ++j) {
    std::vector<float> key(64);
    read_paged_row(pages.view, 0, j, key.data());
    keys.set(j, key.data());
  }
  for (int t = 0; t < tokens; ++t) {
    const int visible = (t + 1) / 4;
    const std::vector<std::int32_t> row(selected.begin() + t * 8, selected.begin() + (t + 1) * 8);
    ASSERT_EQ(count[static_cast<std::size_t>(t)], std::min(visible, 8));
    std::vector<float> scores(static_cast<std::size_t>(visible));
    index_scores(q.data() + t * config.index_n_heads * 64, weights.data() + t * config.index_n_heads,
                 config.index_n_heads, keys, visible, ScorePrecision::kF32, scores.data());
    std::vector<std::int32_t> expected(8);
    select_topk(scores, 8, expected.data());
    EXPECT_EQ(row, expected) << t;
  }
}

TEST(Hadamard, BothSidesKeepScoresOneSideDoesNot) {
  // Trap D1.
  test::RandomMatrices make(6);
  std::vector<float> q = make.activations(128), k = make.activations(128);
  k[3] = 40.0f;  // an outlier
  const auto dot = [](const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
    return sum;
  };
  const double exact = dot(q, k);
  std::vector<float> hq = q, hk = k;
  hadamard(hq);
  hadamard(hk);
  EXPECT_NEAR(dot(hq, hk), exact, 1e-3);
  EXPECT_GT(std::fabs(dot(hq, k) - exact), 1.0);
}

}  // namespace
}  // namespace pivot::reference
