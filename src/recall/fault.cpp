#include "recall/fault.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "cache/cache_layout.h"
#include "numeric/quantize.h"
#include "ops/forwarding_backend.h"
#include "ops/rope.h"
#include "recall/device_rows.h"

namespace pivot::recall {
namespace {

constexpr std::array kFaults = {
    FaultInfo{Fault::kUnrotatedKeys, "unrotated-keys",
              "index keys are stored without the Hadamard rotation, queries have it (D1)",
              Part::kKeyRotation},
    FaultInfo{Fault::kAliasedKeyScales, "aliased-key-scales",
              "every index key of a page gets the scales of the page's first key", Part::kKeyScales},
    FaultInfo{Fault::kMisreadKeyLayout, "misread-key-layout",
              "index keys are read with the bytes of each half swapped", Part::kKeyLayout},
    FaultInfo{Fault::kDroppedCandidates, "dropped-candidates",
              "the top-k loses the best half of its candidates and fills up with others (D2)",
              Part::kTopkCandidates},
    FaultInfo{Fault::kSmallTopk, "small-topk", "the selection has a single entry, whatever index_topk says",
              Part::kTopkSize},
    FaultInfo{Fault::kWindowLostOnRestore, "window-lost-on-restore",
              "going back to a saved point leaves the window rows zero", Part::kWindowRestore},
    FaultInfo{Fault::kCompressorLostOnRestore, "compressor-lost-on-restore",
              "going back to a saved point leaves the compressor states zero", Part::kCompressorRestore},
    FaultInfo{Fault::kCompressorLostBetweenSteps, "compressor-lost-between-steps",
              "each step starts with empty compressor states (D14)", Part::kCompressorCarry},
    FaultInfo{Fault::kWrongTheta, "wrong-theta",
              "compressed layers rotate keys and queries by theta 10000 without YaRN (D7)", Part::kRope},
    FaultInfo{Fault::kMisreadKvScales, "misread-kv-scales", "the scales of compressed KV rows are read wrong",
              Part::kEntryScales},
    FaultInfo{Fault::kZeroedExperts, "zeroed-experts", "the experts' output is lost", Part::kExperts},
};

class FaultyBackend final : public ForwardingBackend {
 public:
  FaultyBackend(std::shared_ptr<Backend> inner, std::shared_ptr<const ModelWeights> weights,
                CacheLayout layout, Fault fault)
      : ForwardingBackend(std::move(inner)),
        weights_(std::move(weights)),
        layout_(std::move(layout)),
        fault_(fault),
        wrong_frequencies_(rope_frequencies(weights_->config.rope_main, weights_->config.qk_rope_head_dim)) {}

  // A saved point comes back as one upload of a whole slot; nothing else has this size.
  void upload(void* device, const void* host, std::int64_t bytes) override {
    const bool window = fault_ == Fault::kWindowLostOnRestore;
    if ((!window && fault_ != Fault::kCompressorLostOnRestore) || bytes != layout_.slot_bytes)
      return inner().upload(device, host, bytes);
    std::vector<std::byte> slot(static_cast<std::size_t>(bytes));
    std::memcpy(slot.data(), host, slot.size());
    const auto clear = [&](std::int64_t offset, std::int64_t count) {
      if (offset >= 0) std::fill_n(slot.begin() + offset, count, std::byte{0});
    };
    for (const LayerLayout& layer : layout_.layers) {
      if (window) {
        clear(layer.window_offset, layout_.kv.page_bytes(layout_.options.window_rows));
        continue;
      }
      const int width = layer.ratio == 4 ? layout_.compressor_width4 : layout_.compressor_width128;
      clear(layer.compressor_offset, std::int64_t{layout_.state_rows(layer.ratio)} * 2 * width * 4);
      clear(layer.index_compressor_offset,
            std::int64_t{layout_.state_rows(4)} * 2 * layout_.index_compressor_width * 4);
    }
    inner().upload(device, slot.data(), bytes);
  }

  void latent(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
              const LatentParams& p) override {
    if (fault_ == Fault::kCompressorLostBetweenSteps) clear_states(layer, batch, p.cache);
    inner().latent(disturbed(layer), knobs, batch, p);
    for (std::int32_t s = 0; s < batch.num_spans; ++s) {
      const SequenceSpan& span = batch.host_spans[s];
      if (layer.ratio == 0) continue;
      for (std::int64_t j = span.start_position / layer.ratio;
           j < (span.start_position + span.num_tokens) / layer.ratio; ++j) {
        if (layer.ratio == 4) disturb_key(p.cache.index_keys, span.table, j);
        if (fault_ == Fault::kMisreadKvScales) disturb_row(p.cache.compressed, span.table, j);
      }
    }
  }

  void query(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
             const QueryParams& p) override {
    inner().query(disturbed(layer), knobs, batch, p);
  }

  void attention(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                 const AttentionParams& p) override {
    // The inverse rotation stays right: it is the forward one that ports get wrong.
    inner().attention(layer, knobs, batch, p);
  }

  void index_select(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                    const IndexSelectParams& p) override {
    inner().index_select(layer, knobs, batch, p);
    if (fault_ == Fault::kSmallTopk) shrink(batch, p);
    if (fault_ == Fault::kDroppedCandidates) drop_candidates(layer, knobs, batch, p);
  }

  void moe(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
           const MoeParams& p) override {
    inner().moe(layer, knobs, batch, p);
    if (fault_ == Fault::kZeroedExperts)
      inner().fill(static_cast<std::byte*>(p.out), 0,
                   std::int64_t{batch.num_tokens} * layer.config->hidden_size * activation_bytes());
  }

 private:
  LayerContext disturbed(const LayerContext& layer) const {
    LayerContext context = layer;
    if (fault_ == Fault::kWrongTheta && layer.ratio != 0)
      context.rope_frequencies = wrong_frequencies_.data();
    return context;
  }

  void clear_states(const LayerContext& layer, const StepBatch& batch, const LayerCacheView& cache) {
    for (std::int32_t s = 0; s < batch.num_spans; ++s)
      for (const CompressorStateView* state : {&cache.compressor, &cache.index_compressor})
        if (layer.ratio != 0 && state->base != nullptr)
          inner().fill(
              reinterpret_cast<std::byte*>(state->base + batch.host_spans[s].slot * state->slot_floats), 0,
              std::int64_t{state->rows} * 2 * state->width * 4);
  }

  void disturb_key(const PagedView& keys, std::int32_t table, std::int64_t entry) {
    if (fault_ != Fault::kUnrotatedKeys && fault_ != Fault::kAliasedKeyScales &&
        fault_ != Fault::kMisreadKeyLayout)
      return;
    EntryBytes bytes = read_entry_bytes(inner(), keys, table, entry);
    if (fault_ == Fault::kUnrotatedKeys) {
      std::vector<float> key = read_entries(inner(), keys, table, entry, entry + 1);
      hadamard(key);
      pack_row(keys.layout, key.data(), bytes.data.data(), bytes.scales.data());
    } else if (fault_ == Fault::kAliasedKeyScales) {
      bytes.scales = read_entry_bytes(inner(), keys, table, entry - entry % keys.page_rows).scales;
    } else {
      std::rotate(bytes.data.begin(), bytes.data.begin() + static_cast<std::ptrdiff_t>(bytes.data.size() / 2),
                  bytes.data.end());
    }
    write_entry(inner(), keys, table, entry, bytes.data, bytes.scales);
  }

  void disturb_row(const PagedView& rows, std::int32_t table, std::int64_t entry) {
    EntryBytes bytes = read_entry_bytes(inner(), rows, table, entry);
    const std::int32_t groups = rows.layout.format == RowFormat::kKvPacked ? kv_scale_groups(rows.layout) : 0;
    // A shifted byte often changes little; three octaves more is what a misread page of scales looks like.
    for (std::int32_t g = 0; g < groups; ++g) {
      const int octaves = g % 2 == 0 ? 3 : -3;
      bytes.scales[static_cast<std::size_t>(g)] =
          static_cast<std::byte>(std::to_integer<int>(bytes.scales[static_cast<std::size_t>(g)]) + octaves);
    }
    write_entry(inner(), rows, table, entry, bytes.data, bytes.scales);
  }

  void shrink(const StepBatch& batch, const IndexSelectParams& p) {
    for (std::int32_t t = 0; t < batch.num_tokens; ++t) {
      const std::int64_t row = std::int64_t{t} * p.topk;
      if (read_ints(inner(), p.count, t, 1)[0] < 2) continue;
      std::vector<std::int32_t> selected(static_cast<std::size_t>(p.topk), -1);
      selected[0] = read_ints(inner(), p.selected, row, 1)[0];
      const std::int32_t one = 1;
      inner().upload(p.selected + row, selected.data(), std::int64_t{p.topk} * 4);
      inner().upload(p.count + t, &one, 4);
    }
  }

  // Finds the best half by selecting again with half the k, and puts the lowest other entries in their place.
  void drop_candidates(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                       const IndexSelectParams& p) {
    const std::int32_t half = p.topk / 2;
    if (half == 0) return;
    auto memory = inner().allocate(std::int64_t{batch.num_tokens} * (half + 1) * 4, "fault injection");
    if (!memory) return;
    IndexSelectParams best = p;
    best.topk = half;
    best.selected = reinterpret_cast<std::int32_t*>(*memory);
    best.count = best.selected + std::int64_t{batch.num_tokens} * half;
    inner().index_select(layer, knobs, batch, best);
    for (std::int32_t s = 0; s < batch.num_spans; ++s) {
      const SequenceSpan& span = batch.host_spans[s];
      for (std::int32_t i = 0; i < span.num_tokens; ++i) {
        const std::int64_t token = span.first_token + i;
        const std::int32_t visible = (span.start_position + i + 1) / layer.ratio;
        if (visible <= p.topk) continue;
        std::vector<std::int32_t> all = read_ints(inner(), p.selected, token * p.topk, p.topk);
        const std::vector<std::int32_t> lost = read_ints(inner(), best.selected, token * half, half);
        std::vector<bool> taken(static_cast<std::size_t>(visible), false);
        for (const std::int32_t j : all) taken[static_cast<std::size_t>(j)] = true;
        std::int32_t spare = 0;
        for (std::int32_t& j : all) {
          if (!std::binary_search(lost.begin(), lost.end(), j)) continue;
          while (spare < visible && taken[static_cast<std::size_t>(spare)]) ++spare;
          if (spare >= visible) break;
          j = spare++;
        }
        std::sort(all.begin(), all.end());
        all.erase(std::unique(all.begin(), all.end()), all.end());
        const auto count = static_cast<std::int32_t>(all.size());
        all.resize(static_cast<std::size_t>(p.topk), -1);
        inner().upload(p.selected + token * p.topk, all.data(), std::int64_t{p.topk} * 4);
        inner().upload(p.count + token, &count, 4);
      }
    }
    inner().release(*memory);
  }

  std::shared_ptr<const ModelWeights> weights_;
  CacheLayout layout_;
  Fault fault_;
  std::vector<float> wrong_frequencies_;
};

}  // namespace

std::span<const FaultInfo> fault_table() { return kFaults; }

Result<FaultInfo> parse_fault(std::string_view name) {
  std::string known;
  for (const FaultInfo& info : kFaults) {
    if (info.name == name) return info;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", info.name);
  }
  return fail(ErrorCode::kInvalidArgument, "there is no fault \"{}\"; choose from {}", name, known);
}

Result<std::shared_ptr<Backend>> make_faulty_backend(std::shared_ptr<Backend> inner,
                                                     std::shared_ptr<const ModelWeights> weights,
                                                     const Knobs& knobs, Fault fault) {
  PIVOT_TRY(CacheLayout layout, make_cache_layout(weights->config, knobs));
  return std::make_shared<FaultyBackend>(std::move(inner), std::move(weights), std::move(layout), fault);
}

}  // namespace pivot::recall
