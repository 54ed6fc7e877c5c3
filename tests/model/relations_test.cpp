// Relations that need no golden values (public-faults section 0), on the tiny checkpoint with index_topk 16,
// so that the selection is active from 68 tokens on. On the CPU back-ends all of them hold bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "cache/snapshot.h"
#include "engine/devices.h"
#include "model/runner.h"
#include "support/test_data.h"
#include "support/tiny_checkpoint.h"

namespace pivot::test {
namespace {

std::shared_ptr<const ModelWeights> tiny_weights() {
  static std::shared_ptr<const ModelWeights> weights;
  if (weights == nullptr) {
    const std::filesystem::path folder = scratch_dir() / "tiny";
    write_tiny_checkpoint(folder);
    weights = load_or_die(folder);
  }
  return weights;
}

RunnerOptions with_rows(std::int32_t max_logit_rows) {
  RunnerOptions options;
  options.max_logit_rows = max_logit_rows;
  return options;
}

RunnerOptions with_cache(std::int32_t sequences, const CacheOptions& cache) {
  RunnerOptions options;
  options.sequences = sequences;
  options.cache = cache;
  return options;
}

RunnerOptions with_sequences(std::int32_t sequences) { return with_cache(sequences, {}); }

// Row `row` of concatenated logits.
std::vector<float> row_of(const std::vector<float>& logits, std::int64_t row, std::int64_t width) {
  return {logits.begin() + row * width, logits.begin() + (row + 1) * width};
}

// The binary is built twice: with the prompt lengths of the public reports (label slow), and with shorter
// ones.
std::int64_t prompt_tokens() { return PIVOT_LONG_PROMPTS ? 701 : 269; }

class Relations : public testing::TestWithParam<std::string> {
 protected:
  Runner make_runner(RunnerOptions options = {}) {
    const auto backend = make_backend(GetParam(), 2);
    EXPECT_TRUE(backend) << backend.error().to_string();
    options.max_context = std::max<std::int64_t>(options.max_context, 1100);
    return Runner(tiny_weights(), *backend, options);
  }
  std::vector<std::int32_t> ids(std::int64_t n, std::uint32_t seed) const {
    return pseudo_random_ids(n, seed, static_cast<std::int32_t>(tiny_weights()->config.vocab_size));
  }
  // Every CPU back-end promises it: a result depends on nothing but the sequence's own tokens.
  static void expect_same(const std::vector<float>& actual, const std::vector<float>& expected,
                          const std::string& what) {
    ASSERT_EQ(actual.size(), expected.size());
    ASSERT_TRUE(std::all_of(actual.begin(), actual.end(), [](float x) { return std::isfinite(x); })) << what;
    EXPECT_EQ(actual, expected) << what;
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, Relations, testing::ValuesIn(tested_backends()),
                         [](const testing::TestParamInfo<std::string>& backend) {
                           std::string name = backend.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// M1, B03: any chunk limit gives the logits and the selected sets of one whole step.
TEST_P(Relations, ChunkedEqualsWhole) {
  const std::vector<std::int32_t> prompt = ids(prompt_tokens(), 2);
  Runner runner = make_runner();
  TapRecorder taps;
  runner.set_taps(&taps);
  const std::vector<float> whole = runner.feed(0, prompt);
  const auto last_selection = [&](std::int32_t layer) {
    const TapRecorder::Record& record = taps.at("index_topk", layer);
    const auto k = static_cast<std::ptrdiff_t>(record.shape[1]);
    return std::vector<std::int32_t>(record.ids.end() - k, record.ids.end());
  };
  const std::vector<std::int32_t> selection[] = {last_selection(2), last_selection(4)};
  EXPECT_EQ(selection[0].size(), 16u);
  EXPECT_GE(selection[0][0], 0);
  for (std::int32_t chunk : {512, 256, 255, 130, 129, 128, 127, 100, 64, 5, 4, 3, 1}) {
    runner.restart(0);
    expect_same(runner.feed(0, prompt, chunk), whole, fmt::format("chunks of {}", chunk));
    EXPECT_EQ(last_selection(2), selection[0]) << chunk;
    EXPECT_EQ(last_selection(4), selection[1]) << chunk;
  }
}

// M2, B01: prefill(n) + forced decode steps = prefill(n + steps), for lengths around 4, 128, 256 and every
// residue mod 4.
TEST_P(Relations, DecodeEqualsPrefillAtShortLengths) {
  const std::vector<std::int32_t> tokens = ids(280, 1);
  const std::int64_t width = tiny_weights()->config.vocab_size;
  Runner runner = make_runner(with_rows(300));
  const std::vector<float> whole = runner.feed_for_rows(0, tokens, 0);
  for (std::int64_t n :
       {1,  2,   3,   4,   5,   6,   7,   8,   9,   63,  64,  65,  66,  67,  68,  69,  70,
        71, 125, 126, 127, 128, 129, 130, 131, 132, 253, 254, 255, 256, 257, 258, 259, 260}) {
    runner.restart(0);
    std::vector<float> logits = runner.feed(0, std::span(tokens).first(static_cast<std::size_t>(n)));
    expect_same(logits, row_of(whole, n - 1, width), fmt::format("prefill {}", n));
    for (std::int64_t step = 0; step < 6; ++step) {
      logits = runner.feed(0, std::span(tokens).subspan(static_cast<std::size_t>(n + step), 1));
      expect_same(logits, row_of(whole, n + step, width), fmt::format("prefill {} and step {}", n, step + 1));
    }
  }
}

// The lengths of B01, which cross 1024 = 8 * 128. All start from the state after 992 tokens, so the part of
// the prompt that is handed over to decoding is computed anew at every length.
TEST_P(Relations, DecodeEqualsPrefillAcrossABlockOf128) {
  const std::vector<std::int32_t> tokens = ids(1042, 1);
  const std::int64_t width = tiny_weights()->config.vocab_size;
  constexpr std::size_t kBase = 992;
  Runner runner = make_runner(with_rows(64));
  runner.feed(0, std::span(tokens).first(kBase));
  const Snapshot base = export_sequence(runner.sequence(0), 0);
  const std::vector<float> whole = runner.feed_for_rows(0, std::span(tokens).subspan(kBase), 0);
  std::vector<std::size_t> lengths;
  for (std::size_t n = 1000; n <= 1007; ++n) lengths.push_back(n);
  for (std::size_t n = 1020; n <= 1029; ++n) lengths.push_back(n);
  for (std::size_t n : lengths) {
    runner.restart(0);
    ASSERT_TRUE(import_sequence(runner.sequence(0), base, 0));
    std::vector<float> logits = runner.feed(0, std::span(tokens).subspan(kBase, n - kBase));
    const auto row = static_cast<std::int64_t>(n - 1 - kBase);
    expect_same(logits, row_of(whole, row, width), fmt::format("prefill {}", n));
    for (std::size_t step = 0; step < 12; ++step) {
      logits = runner.feed(0, std::span(tokens).subspan(n + step, 1));
      expect_same(logits, row_of(whole, row + 1 + static_cast<std::int64_t>(step), width),
                  fmt::format("prefill {} and step {}", n, step + 1));
    }
  }
}

// M8, B03: two prompts of 701 and 333 tokens interleaved chunk by chunk, then decoded together, equal each
// alone.
TEST_P(Relations, BatchedEqualsAlone) {
  const std::vector<std::int32_t> prompts[] = {ids(prompt_tokens(), 2), ids(133, 3)};
  const std::vector<std::int32_t> forced[] = {ids(8, 4), ids(8, 5)};
  std::vector<std::vector<float>> alone[2];
  {
    Runner runner = make_runner();
    for (int s = 0; s < 2; ++s) {
      runner.restart(0);
      alone[s].push_back(runner.feed(0, prompts[s]));
      for (std::int32_t id : forced[s]) alone[s].push_back(runner.feed(0, {&id, 1}));
    }
  }
  for (std::int32_t chunk : {256, 129, 64, 7}) {
    Runner runner = make_runner(with_sequences(2));
    std::vector<std::vector<float>> last(2);
    std::size_t done[2] = {0, 0};
    while (done[0] < prompts[0].size() || done[1] < prompts[1].size()) {
      std::vector<Runner::Share> shares;
      for (std::int32_t s = 0; s < 2; ++s) {
        const std::size_t count = std::min(static_cast<std::size_t>(chunk), prompts[s].size() - done[s]);
        if (count == 0) continue;
        const auto part = std::span(prompts[s]).subspan(done[s], count);
        shares.push_back({s, {part.begin(), part.end()}});
        done[s] += count;
      }
      const auto logits = runner.step(shares);
      for (std::size_t i = 0; i < shares.size(); ++i)
        last[static_cast<std::size_t>(shares[i].sequence)] = logits[i];
    }
    for (std::size_t s = 0; s < 2; ++s)
      expect_same(last[s], alone[s][0], fmt::format("prompt {} in chunks of {}", s, chunk));
    for (std::size_t t = 0; t < 8; ++t) {
      const Runner::Share shares[] = {{1, {forced[1][t]}}, {0, {forced[0][t]}}};  // in the other order
      const auto logits = runner.step(shares);
      expect_same(logits[0], alone[1][t + 1], fmt::format("step {} of prompt 1", t));
      expect_same(logits[1], alone[0][t + 1], fmt::format("step {} of prompt 0", t));
    }
  }
}

// A decode step of one sequence in the same batch as a prompt chunk of another.
TEST_P(Relations, MixedPrefillAndDecodeEqualAlone) {
  const std::vector<std::int32_t> long_prompt = ids(300, 6);
  const std::vector<std::int32_t> short_prompt = ids(66, 7);
  const std::vector<std::int32_t> forced = ids(6, 8);
  Runner alone = make_runner();
  std::vector<std::vector<float>> expected = {alone.feed(0, short_prompt)};
  for (std::int32_t id : forced) expected.push_back(alone.feed(0, {&id, 1}));
  alone.restart(0);
  const std::vector<float> expected_long = alone.feed(0, long_prompt);

  Runner runner = make_runner(with_sequences(2));
  expect_same(runner.feed(1, short_prompt), expected[0], "short prompt");
  std::vector<float> last;
  for (std::size_t t = 0; t < 6; ++t) {
    const auto part = std::span(long_prompt).subspan(t * 50, 50);
    const Runner::Share shares[] = {{0, {part.begin(), part.end()}}, {1, {forced[t]}}};
    const auto logits = runner.step(shares);
    last = logits[0];
    expect_same(logits[1], expected[t + 1], fmt::format("decode step {} beside a prompt chunk", t));
  }
  expect_same(last, expected_long, "prompt beside decode steps");
}

// Restored = continued, bit for bit on any back-end: the same computation on the same bytes.
TEST_P(Relations, ARestoredSnapshotContinues) {
  const std::vector<std::int32_t> tokens = ids(560, 9);
  for (std::size_t n : {1u, 3u, 4u, 67u, 127u, 128u, 131u, 255u, 256u, 301u, 515u}) {
    Runner runner = make_runner();
    runner.feed(0, std::span(tokens).first(n));
    const Snapshot snapshot = export_sequence(runner.sequence(0), 5);
    Runner other = make_runner(with_cache(
        2, {.block_tokens = 512, .window_rows = 160, .ratio4_state_rows = 16, .ratio128_state_rows = 144}));
    const auto imported = import_sequence(other.sequence(1), snapshot, 5);
    ASSERT_TRUE(imported) << imported.error().to_string();
    const auto rest = std::span(tokens).subspan(n, 9);
    for (std::size_t t = 0; t < rest.size(); ++t) {
      const std::vector<float> continued = runner.feed(0, rest.subspan(t, 1));
      EXPECT_EQ(other.feed(1, rest.subspan(t, 1)), continued) << n << " + " << t;
    }
    const auto chunk = std::span(tokens).subspan(n + 9, 36);
    const std::vector<float> continued = runner.feed(0, chunk);
    EXPECT_EQ(other.feed(1, chunk), continued) << n << " + chunk";
  }
}

// Longer rings allow a rollback (rejected speculation): the state afterwards is as if the tokens had never
// been there.
TEST_P(Relations, ARollbackLeavesNoTrace) {
  const std::vector<std::int32_t> tokens = ids(300, 10);
  const std::vector<std::int32_t> rejected = ids(5, 11);
  for (std::size_t n : {126u, 127u, 128u, 129u, 255u, 256u}) {
    Runner plain = make_runner();
    plain.feed(0, std::span(tokens).first(n));
    Runner runner =
        make_runner(with_cache(1, {.window_rows = 136, .ratio4_state_rows = 16, .ratio128_state_rows = 136}));
    runner.feed(0, std::span(tokens).first(n));
    runner.feed(0, rejected);
    const auto truncated = runner.sequence(0).truncate(static_cast<std::int64_t>(n));
    ASSERT_TRUE(truncated) << truncated.error().to_string();
    for (std::size_t t = 0; t < 6; ++t) {
      const std::vector<float> expected = plain.feed(0, std::span(tokens).subspan(n + t, 1));
      EXPECT_EQ(runner.feed(0, std::span(tokens).subspan(n + t, 1)), expected) << n << " + " << t;
    }
  }
}

// B04: a slot and pages that another sequence has used (poisoned in between) give the logits of fresh ones.
TEST_P(Relations, AReusedSlotEqualsAFreshOne) {
  Runner fresh = make_runner();
  const std::vector<std::int32_t> prompt = ids(257, 3);
  const std::vector<float> expected = fresh.feed(0, prompt);
  Runner runner = make_runner();
  runner.feed(0, ids(400, 4));
  runner.restart(0);
  EXPECT_EQ(runner.feed(0, prompt), expected);
}

// 2.6, F2, B12: while no entry has to be dropped the selection is everything; from the first dropped entry on
// it is not.
TEST_P(Relations, SelectionIsEverythingUntilTopkIsExceeded) {
  RunnerOptions options;
  Runner selected = make_runner(options);
  options.knobs.index_topk = kTopkAll;
  Runner all = make_runner(options);
  options.knobs.index_topk = 100000;
  Runner wide = make_runner(options);
  EXPECT_EQ(all.model().index_topk(), 0);
  EXPECT_EQ(wide.model().index_topk(), 0);
  EXPECT_EQ(selected.model().index_topk(), 16);
  TapRecorder taps;
  selected.set_taps(&taps);
  const std::vector<std::int32_t> tokens = ids(90, 12);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const auto one = std::span(tokens).subspan(t, 1);
    const std::vector<float> logits = selected.feed(0, one);
    const std::vector<float> dense = all.feed(0, one);
    EXPECT_EQ(wide.feed(0, one), dense);
    std::vector<std::int32_t> set = taps.at("index_topk", 2).ids;
    std::erase(set, -1);
    EXPECT_EQ(set.size(), std::min<std::size_t>(16, (t + 1) / 4));
    EXPECT_TRUE(std::is_sorted(set.begin(), set.end()));
    if (t + 1 < 68)
      EXPECT_EQ(logits, dense) << t;
    else
      EXPECT_NE(logits, dense) << t;
  }
}

// Observing changes nothing.
TEST_P(Relations, TapsChangeNothing) {
  const std::vector<std::int32_t> prompt = ids(200, 13);
  Runner plain = make_runner();
  Runner tapped = make_runner();
  TapRecorder taps;
  tapped.set_taps(&taps);
  EXPECT_EQ(tapped.feed(0, prompt), plain.feed(0, prompt));
  for (const char* name : {"attn_in", "qr", "kv", "q", "o", "attn_out", "ffn_in", "gate_ids", "gate_w",
                           "gate_margin", "ffn_out", "hc"})
    for (std::int32_t layer = 0; layer < 6; ++layer)
      EXPECT_TRUE(taps.has(name, layer)) << name << " " << layer;
  for (const char* name : {"index_q", "index_w", "index_topk"}) {
    EXPECT_TRUE(taps.has(name, 2)) << name;
    EXPECT_FALSE(taps.has(name, 3)) << name;
  }
  EXPECT_EQ(taps.at("q", 0).shape, (std::vector<std::int64_t>{200, 4, 512}));
}

// Packed rows stand for exactly the wide ones, so the layout changes nothing.
TEST_P(Relations, PackedRowsEqualWideRows) {
  const std::vector<std::int32_t> prompt = ids(200, 9);
  RunnerOptions options;
  const std::vector<float> packed = make_runner(options).feed(0, prompt, 64);
  options.knobs.kv_layout = KvLayout::kWide;
  EXPECT_EQ(make_runner(options).feed(0, prompt, 64), packed);
}

}  // namespace
}  // namespace pivot::test
