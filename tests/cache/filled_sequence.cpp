#include "cache/filled_sequence.h"

#include <gtest/gtest.h>

#include <cstring>

#include "checkpoint/flash_config.h"
#include "ops/cpu/reference/backend.h"

namespace pivot::test {
namespace {

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// hashes[p]: of the tokens up to and with position p.
std::vector<std::uint64_t> prefix_hashes(std::span<const TokenId> ids) {
  std::vector<std::uint64_t> hashes;
  std::uint64_t hash = 1;
  for (const TokenId id : ids) {
    hash = mix(hash * 31 + static_cast<std::uint64_t>(raw(id)) + 7);
    hashes.push_back(hash);
  }
  return hashes;
}

// Eight bytes, over and over, of the row that the token at a position makes.
std::uint64_t pattern(std::uint64_t prefix_hash, Component component, std::size_t layer) {
  return mix(prefix_hash + 64 * layer + static_cast<std::uint64_t>(component) + 1);
}
void fill(std::byte* bytes, std::int64_t size, std::uint64_t value) {
  for (std::int64_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(value >> (8 * (i % 8)));
}
bool is_filled(const std::byte* bytes, std::int64_t size, std::uint64_t value) {
  for (std::int64_t i = 0; i < size; ++i)
    if (bytes[i] != static_cast<std::byte>(value >> (8 * (i % 8)))) return false;
  return true;
}

void write_position(SequenceState& sequence, std::int64_t position, std::uint64_t hash) {
  CachePool& pool = sequence.pool();
  const CacheLayout& layout = pool.layout();
  std::byte* slot = pool.slot_data(sequence.slot());
  for (std::size_t l = 0; l < layout.layers.size(); ++l) {
    const LayerLayout& layer = layout.layers[l];
    const auto row = [&](std::byte* page, const RowLayout& kind, std::int64_t index, std::int32_t rows,
                         Component component) {
      const std::uint64_t value = pattern(hash, component, l);
      const auto i = static_cast<std::int32_t>(index % rows);
      fill(page + kind.data_offset(i), kind.data_bytes, value);
      fill(page + kind.scale_offset(i, rows), kind.scale_bytes, value);
    };
    row(slot + layer.window_offset, layout.kv, position, layout.options.window_rows, Component::kWindow);
    if (layer.ratio == 0) continue;
    const auto state = [&](std::int64_t offset, std::int32_t width, Component component) {
      const std::int64_t bytes = std::int64_t{2} * width * 4;
      fill(slot + offset + position % layout.state_rows(layer.ratio) * bytes, bytes,
           pattern(hash, component, l));
    };
    state(layer.compressor_offset, layer.ratio == 4 ? layout.compressor_width4 : layout.compressor_width128,
          Component::kCompressor);
    if (layer.ratio == 4)
      state(layer.index_compressor_offset, layout.index_compressor_width, Component::kIndexCompressor);
    if ((position + 1) % layer.ratio != 0) continue;
    const std::int64_t entry = position / layer.ratio;
    const PagePool kind = layout.pool_of(static_cast<std::int64_t>(l));
    const std::int32_t rows = layout.page_rows(kind);
    const std::int32_t page = sequence.pages(kind)[static_cast<std::size_t>(entry / rows)];
    // The rule that makes sharing safe.
    EXPECT_EQ(pool.pages(kind).references(page), 1) << "a shared page is written";
    std::byte* bytes = pool.page_data(kind, PageId{page});
    row(bytes + layer.compressed_offset, layout.kv, entry, rows, Component::kCompressed);
    if (layer.ratio == 4)
      row(bytes + layer.index_keys_offset, layout.index_key, entry, rows, Component::kIndexKeys);
  }
}

}  // namespace

CacheLayout narrow_layout() {
  ModelConfig config = flash_config();
  config.num_hidden_layers = 6;
  config.compress_ratios.resize(6);
  config.head_dim = 128;
  config.index_head_dim = 32;
  return make_cache_layout(config, {}).value();
}

std::shared_ptr<CachePool> narrow_pool(std::int32_t slots, std::int32_t pages) {
  CachePoolOptions options;
  options.num_slots = slots;
  options.num_pages[0] = options.num_pages[1] = pages;
  options.poison = true;
  return CachePool::create(std::shared_ptr<Backend>(make_reference_backend()), narrow_layout(), options)
      .value();
}

bool compute(SequenceState& sequence, std::span<const TokenId> ids) {
  if (!sequence.reserve(static_cast<std::int64_t>(ids.size()))) return false;
  std::vector<TokenId> all(sequence.tokens().begin(), sequence.tokens().end());
  all.insert(all.end(), ids.begin(), ids.end());
  const std::vector<std::uint64_t> hashes = prefix_hashes(all);
  for (std::int64_t p = sequence.position(); p < std::ssize(all); ++p)
    write_position(sequence, p, hashes[static_cast<std::size_t>(p)]);
  sequence.append(ids);
  return true;
}

std::string fault(const Snapshot& snapshot, const CacheLayout& layout) {
  const std::vector<std::uint64_t> hashes = prefix_hashes(snapshot.tokens);
  if (snapshot.parts.size() != required_parts(layout, std::ssize(snapshot.tokens)).size())
    return "the number of parts";
  for (const SnapshotPart& part : snapshot.parts) {
    const bool is_entry = part.component == Component::kCompressed || part.component == Component::kIndexKeys;
    const bool is_row = is_entry || part.component == Component::kWindow;
    const RowLayout& kind = part.component == Component::kIndexKeys ? layout.index_key : layout.kv;
    const std::int64_t rows = part.end - part.begin;
    const std::byte* bytes = snapshot.bytes.data() + part.offset;
    const int ratio = layout.layers[static_cast<std::size_t>(part.layer)].ratio;
    for (std::int64_t i = 0; i < rows; ++i) {
      const std::int64_t position = is_entry ? (part.begin + i + 1) * ratio - 1 : part.begin + i;
      const std::uint64_t value = pattern(hashes[static_cast<std::size_t>(position)], part.component,
                                          static_cast<std::size_t>(part.layer));
      const bool right =
          is_row
              ? is_filled(bytes + i * kind.data_bytes, kind.data_bytes, value) &&
                    is_filled(bytes + rows * kind.data_bytes + i * kind.scale_bytes, kind.scale_bytes, value)
              : is_filled(bytes + i * (part.size_bytes / rows), part.size_bytes / rows, value);
      if (!right)
        return fmt::format("{} of layer {}, row {} of position {}", to_string(part.component), part.layer,
                           part.begin + i, snapshot.tokens.size());
    }
  }
  return {};
}

std::string fault(const SequenceState& sequence) {
  return fault(export_sequence(sequence, 1), sequence.pool().layout());
}

std::vector<TokenId> family(std::uint32_t number, std::int64_t count) {
  std::vector<TokenId> ids;
  for (std::int64_t i = 0; i < count; ++i)
    ids.push_back(
        TokenId{static_cast<std::int32_t>(mix(number * 1000003ull + static_cast<std::uint64_t>(i)) % 1000)});
  return ids;
}

}  // namespace pivot::test
