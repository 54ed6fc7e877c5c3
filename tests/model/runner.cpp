#include "model/runner.h"

#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "cache/snapshot.h"
#include "checkpoint/load.h"
#include "engine/devices.h"

namespace pivot::test {
namespace {

template <class T>
T value_or_die(Result<T> result) {
  PIVOT_CHECK(result, "{}", result.error().to_string());
  return *std::move(result);
}
void success_or_die(const Result<>& result) { PIVOT_CHECK(result, "{}", result.error().to_string()); }

}  // namespace

void TapRecorder::take(const Tap& tap) {
  Record& record = records_[{std::string(tap.name), tap.layer}];
  record.shape.assign(tap.shape.begin(), tap.shape.end());
  record.values.assign(tap.values.begin(), tap.values.end());
  record.ids.assign(tap.ids.begin(), tap.ids.end());
}

Runner::Runner(std::shared_ptr<const ModelWeights> weights, std::shared_ptr<Backend> backend,
               const RunnerOptions& options) {
  CacheLayout layout = value_or_die(make_cache_layout(weights->config, options.knobs, options.cache));
  CachePoolOptions pool_options =
      CachePoolOptions::for_sequences(layout, options.sequences, options.max_context);
  pool_options.poison = options.poison;
  ModelOptions model_options;
  model_options.knobs = options.knobs;
  model_options.max_context = options.max_context;
  model_options.max_step_tokens =
      static_cast<std::int32_t>(options.max_step_tokens > 0 ? options.max_step_tokens : options.max_context);
  model_options.max_step_spans = options.sequences;
  model_options.max_logit_rows = options.max_logit_rows > 0 ? options.max_logit_rows : options.sequences;
  auto model = Model::create(std::move(weights), backend, model_options);
  if (!model && model.error().code == ErrorCode::kUnsupported) throw Refused(model.error().to_string());
  model_ = value_or_die(std::move(model));
  tables_ = value_or_die(PageTables::create(backend, layout, options.sequences, options.max_context));
  pool_ = value_or_die(CachePool::create(backend, std::move(layout), pool_options));
  for (std::int32_t i = 0; i < options.sequences; ++i)
    sequences_.push_back(value_or_die(SequenceState::create(pool_)));
}

void Runner::run_step(std::span<const Share> shares, std::span<const std::int32_t> logit_rows) {
  std::vector<std::int32_t> ids;
  std::vector<SequenceSpan> spans;
  std::vector<const SequenceState*> table_rows;
  for (const Share& share : shares) {
    SequenceState& state = sequence(share.sequence);
    const auto count = static_cast<std::int32_t>(share.ids.size());
    success_or_die(state.reserve(count));
    spans.push_back({static_cast<std::int32_t>(ids.size()), count,
                     static_cast<std::int32_t>(state.position()), state.slot(),
                     static_cast<std::int32_t>(table_rows.size())});
    table_rows.push_back(&state);
    ids.insert(ids.end(), share.ids.begin(), share.ids.end());
  }
  tables_->upload(table_rows);
  const std::vector<LayerCacheView> views = pool_->views(tables_->tables());
  success_or_die(model_->forward({ids, spans, logit_rows, views}, taps_));
  for (const Share& share : shares) {
    std::vector<TokenId> tokens;
    for (std::int32_t id : share.ids) tokens.push_back(TokenId{id});
    sequence(share.sequence).append(tokens);
  }
}

std::vector<std::vector<float>> Runner::step(std::span<const Share> shares) {
  std::vector<std::int32_t> rows;
  std::int32_t end = 0;
  for (const Share& share : shares) {
    end += static_cast<std::int32_t>(share.ids.size());
    rows.push_back(end - 1);
  }
  run_step(shares, rows);
  std::vector<std::vector<float>> logits;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    logits.emplace_back(static_cast<std::size_t>(model_->config().vocab_size));
    model_->read_logits(static_cast<std::int32_t>(i), logits.back());
  }
  return logits;
}

std::vector<float> Runner::feed_for_rows(std::int32_t sequence, std::span<const std::int32_t> ids,
                                         std::int32_t first_row) {
  std::vector<std::int32_t> rows;
  for (auto row = first_row; row < static_cast<std::int32_t>(ids.size()); ++row) rows.push_back(row);
  const Share share{sequence, {ids.begin(), ids.end()}};
  run_step({&share, 1}, rows);
  const auto width = static_cast<std::size_t>(model_->config().vocab_size);
  std::vector<float> logits(rows.size() * width);
  for (std::size_t i = 0; i < rows.size(); ++i)
    model_->read_logits(static_cast<std::int32_t>(i), std::span(logits).subspan(i * width, width));
  return logits;
}

std::vector<float> Runner::feed(std::int32_t sequence, std::span<const std::int32_t> ids,
                                std::int32_t chunk) {
  std::vector<float> logits;
  const std::size_t size = chunk > 0 ? static_cast<std::size_t>(chunk) : ids.size();
  for (std::size_t begin = 0; begin < ids.size(); begin += size) {
    const auto part = ids.subspan(begin, std::min(size, ids.size() - begin));
    const Share share{sequence, {part.begin(), part.end()}};
    logits = step({&share, 1})[0];
  }
  return logits;
}

std::vector<float> Runner::prefill_and_decode(std::span<const std::int32_t> ids, std::int64_t prompt,
                                              std::int64_t rows) {
  PIVOT_CHECK(static_cast<std::int64_t>(ids.size()) >= prompt + rows - 1, "{} ids for {}+{}", ids.size(),
              prompt, rows);
  std::vector<float> all = feed(0, ids.first(static_cast<std::size_t>(prompt)));
  for (std::int64_t t = 1; t < rows; ++t) {
    const std::vector<float> row = feed(0, ids.subspan(static_cast<std::size_t>(prompt + t - 1), 1));
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

void Runner::restart(std::int32_t sequence) {
  sequences_[static_cast<std::size_t>(sequence)].reset();
  sequences_[static_cast<std::size_t>(sequence)] = value_or_die(SequenceState::create(pool_));
}

std::vector<float> Runner::snapshot_rows(std::int32_t sequence, std::int32_t layer, Component component) {
  const Snapshot snapshot = export_sequence(this->sequence(sequence), 0);
  const RowLayout& row = component == Component::kIndexKeys ? pool_->layout().index_key : pool_->layout().kv;
  std::vector<float> values;
  for (const SnapshotPart& part : snapshot.parts) {
    if (part.layer != layer || part.component != component) continue;
    const auto rows = static_cast<std::int32_t>(part.end - part.begin);
    values.resize(static_cast<std::size_t>(rows) * static_cast<std::size_t>(row.width));
    for (std::int32_t i = 0; i < rows; ++i)
      unpack_row(row, snapshot.bytes.data() + part.offset + row.data_offset(i),
                 snapshot.bytes.data() + part.offset + row.scale_offset(i, rows),
                 values.data() + std::int64_t{i} * row.width);
  }
  return values;
}

std::vector<float> Runner::window_rows(std::int32_t sequence, std::int32_t layer, std::int64_t begin,
                                       std::int64_t end) {
  const CacheLayout& layout = pool_->layout();
  const LayerLayout& part = layout.layers[static_cast<std::size_t>(layer)];
  std::vector<std::byte> slot(static_cast<std::size_t>(layout.slot_bytes));
  pool_->backend().download(slot.data(), pool_->slot_data(this->sequence(sequence).slot()),
                            layout.slot_bytes);
  std::vector<float> values(static_cast<std::size_t>((end - begin) * layout.kv.width));
  for (std::int64_t p = begin; p < end; ++p) {
    const std::byte* ring = slot.data() + part.window_offset;
    const auto row = static_cast<std::int32_t>(p % layout.options.window_rows);
    unpack_row(layout.kv, ring + layout.kv.data_offset(row),
               ring + layout.kv.scale_offset(row, layout.options.window_rows),
               values.data() + (p - begin) * layout.kv.width);
  }
  return values;
}

std::vector<float> Runner::compressed_rows(std::int32_t sequence, std::int32_t layer) {
  return snapshot_rows(sequence, layer, Component::kCompressed);
}

std::vector<float> Runner::index_keys(std::int32_t sequence, std::int32_t layer) {
  return snapshot_rows(sequence, layer, Component::kIndexKeys);
}

std::vector<std::int32_t> pseudo_random_ids(std::int64_t n, std::uint32_t seed, std::int32_t vocab_size) {
  std::uint32_t x = seed * 2654435761u;
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < n; ++i) {
    x = 1664525u * x + 1013904223u;
    ids.push_back(static_cast<std::int32_t>((x / 65536u) % static_cast<std::uint32_t>(vocab_size - 200)) +
                  100);
  }
  return ids;
}

std::vector<std::string> tested_backends() {
  if (const char* list = std::getenv("PIVOT_TEST_BACKENDS"); list != nullptr && *list != '\0') {
    std::vector<std::string> names;
    std::string rest = list;
    for (std::size_t comma = 0; comma != std::string::npos;) {
      comma = rest.find(',');
      names.push_back(rest.substr(0, comma));
      rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    }
    return names;
  }
  std::vector<std::string> names = {"cpu-reference"};
  if (value_or_die(make_backend("cpu", 1))->name() != "cpu-reference") names.emplace_back("cpu");
  return names;
}

std::shared_ptr<const ModelWeights> load_or_die(const std::filesystem::path& folder) {
  return value_or_die(load_model(folder.string()));
}

}  // namespace pivot::test
