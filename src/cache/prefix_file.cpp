#include "cache/prefix_file.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "base/check.h"

namespace pivot {
namespace {

constexpr std::array<char, 8> kMagic = {'p', 'i', 'v', 'o', 't', 'p', 'f', 'x'};
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kLayoutNameBytes = 40;

// The numbers of a file are little-endian, as every machine is that this program runs on.
struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t num_parts = 0;
  std::uint64_t checkpoint_fingerprint = 0;
  std::uint64_t knobs_hash = 0;
  std::int64_t parent_position = 0;
  std::int64_t position = 0;
  std::int64_t payload_bytes = 0;
};
struct PartEntry {
  std::uint32_t component = 0;
  std::int32_t layer = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t offset = 0;
  std::int64_t size_bytes = 0;
  std::uint64_t checksum = 0;
  std::array<char, kLayoutNameBytes> byte_layout{};
};
static_assert(sizeof(Header) == 56 && sizeof(PartEntry) == 88);
static_assert(std::is_trivially_copyable_v<Header> && std::is_trivially_copyable_v<PartEntry>);

template <class T>
void put(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

std::uint64_t hash_bytes(const void* bytes, std::size_t size) { return XXH3_64bits(bytes, size); }

bool grows(Component component) {
  return component == Component::kCompressed || component == Component::kIndexKeys;
}

const SnapshotPart* find_part(const Snapshot& snapshot, const SnapshotPart& like) {
  for (const SnapshotPart& part : snapshot.parts)
    if (part.component == like.component && part.layer == like.layer) return &part;
  return nullptr;
}

}  // namespace

std::string PrefixKey::to_string() const { return fmt::format("{:016x}{:016x}", high, low); }

PrefixKey root_key(std::uint64_t checkpoint_fingerprint, std::uint64_t knobs_hash) {
  const std::uint64_t identity[] = {checkpoint_fingerprint, knobs_hash, kVersion};
  const XXH128_hash_t hash = XXH3_128bits(identity, sizeof(identity));
  return {hash.low64, hash.high64};
}

PrefixKey extend_key(const PrefixKey& key, std::span<const TokenId> ids) {
  std::vector<std::uint64_t> words = {key.low, key.high, ids.size()};
  words.resize(words.size() + (ids.size() + 1) / 2, 0);
  if (!ids.empty()) std::memcpy(words.data() + 3, ids.data(), ids.size_bytes());
  const XXH128_hash_t hash = XXH3_128bits(words.data(), words.size() * sizeof(std::uint64_t));
  return {hash.low64, hash.high64};
}

std::string encode_prefix_file(const PrefixFile& file) {
  const Snapshot& state = file.state;
  Header header;
  header.num_parts = static_cast<std::uint32_t>(state.parts.size());
  header.checkpoint_fingerprint = state.checkpoint_fingerprint;
  header.knobs_hash = state.knobs_hash;
  header.parent_position = file.parent_position;
  header.position = file.position;
  header.payload_bytes = static_cast<std::int64_t>(state.bytes.size());
  std::string out;
  out.reserve(sizeof(Header) + state.tokens.size() * sizeof(TokenId) +
              state.parts.size() * sizeof(PartEntry) + sizeof(std::uint64_t) + state.bytes.size());
  put(out, header);
  for (const TokenId id : state.tokens) put(out, raw(id));
  for (const SnapshotPart& part : state.parts) {
    PIVOT_CHECK(part.byte_layout.size() < kLayoutNameBytes, "{}", part.byte_layout);
    PartEntry entry{static_cast<std::uint32_t>(part.component),
                    part.layer,
                    part.begin,
                    part.end,
                    part.offset,
                    part.size_bytes,
                    part.checksum,
                    {}};
    std::copy(part.byte_layout.begin(), part.byte_layout.end(), entry.byte_layout.begin());
    put(out, entry);
  }
  put(out, hash_bytes(out.data(), out.size()));
  out.append(reinterpret_cast<const char*>(state.bytes.data()), state.bytes.size());
  return out;
}

Result<PrefixFile> decode_prefix_file(std::span<const std::byte> bytes) {
  const auto bad = [](std::string_view what) {
    return fail(ErrorCode::kInvalidData, "the cached prefix is damaged: {}", what);
  };
  Header header;
  if (bytes.size() < sizeof(Header)) return bad("it is shorter than its header");
  std::memcpy(&header, bytes.data(), sizeof(Header));
  if (header.magic != kMagic || header.version != kVersion) return bad("its magic or version is another");
  const std::int64_t tokens = header.position - header.parent_position;
  const auto size = static_cast<std::int64_t>(bytes.size());
  if (header.parent_position < 0 || tokens < 0 || header.payload_bytes < 0 ||
      tokens > size / static_cast<std::int64_t>(sizeof(TokenId)) ||
      header.num_parts > bytes.size() / sizeof(PartEntry) || header.payload_bytes > size)
    return bad("its header names impossible sizes");
  const std::size_t described = sizeof(Header) + static_cast<std::size_t>(tokens) * sizeof(TokenId) +
                                header.num_parts * sizeof(PartEntry);
  if (bytes.size() != described + sizeof(std::uint64_t) + static_cast<std::size_t>(header.payload_bytes))
    return bad("its size is not what its header says");
  std::uint64_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + described, sizeof(checksum));
  if (hash_bytes(bytes.data(), described) != checksum) return bad("the checksum of its description differs");

  PrefixFile file;
  file.parent_position = header.parent_position;
  file.position = header.position;
  Snapshot& state = file.state;
  state.checkpoint_fingerprint = header.checkpoint_fingerprint;
  state.knobs_hash = header.knobs_hash;
  state.tokens.resize(static_cast<std::size_t>(tokens));
  const std::byte* from = bytes.data() + sizeof(Header);
  std::memcpy(state.tokens.data(), from, state.tokens.size() * sizeof(TokenId));
  from += state.tokens.size() * sizeof(TokenId);
  const std::span<const std::byte> payload = bytes.subspan(described + sizeof(std::uint64_t));
  for (std::uint32_t i = 0; i < header.num_parts; ++i, from += sizeof(PartEntry)) {
    PartEntry entry;
    std::memcpy(&entry, from, sizeof(entry));
    if (entry.component >= kNumComponents || entry.byte_layout.back() != 0 || entry.offset < 0 ||
        entry.size_bytes < 0 || entry.offset > header.payload_bytes ||
        entry.size_bytes > header.payload_bytes - entry.offset || entry.begin < 0 || entry.end <= entry.begin)
      return bad("a part lies outside of it");
    if (snapshot_checksum(payload.subspan(static_cast<std::size_t>(entry.offset),
                                          static_cast<std::size_t>(entry.size_bytes))) != entry.checksum)
      return bad(fmt::format("the checksum of the {} of layer {} differs",
                             to_string(static_cast<Component>(entry.component)), entry.layer));
    state.parts.push_back({static_cast<Component>(entry.component), entry.layer, entry.begin, entry.end,
                           std::string(entry.byte_layout.data()), entry.offset, entry.size_bytes,
                           entry.checksum});
  }
  state.bytes.assign(payload.begin(), payload.end());
  return file;
}

Result<Snapshot> join_prefix_files(const CacheLayout& layout, std::span<const PrefixFile> chain) {
  const auto bad = [](std::string_view what) {
    return fail(ErrorCode::kInvalidData, "the chain of cached prefixes does not fit: {}", what);
  };
  if (chain.empty()) return bad("it is empty");
  Snapshot joined;
  joined.checkpoint_fingerprint = chain.back().state.checkpoint_fingerprint;
  joined.knobs_hash = chain.back().state.knobs_hash;
  std::int64_t position = 0;
  for (const PrefixFile& file : chain) {
    if (file.parent_position != position) return bad("a piece does not begin where the one before ends");
    if (file.state.checkpoint_fingerprint != joined.checkpoint_fingerprint ||
        file.state.knobs_hash != joined.knobs_hash)
      return bad("its pieces are of different checkpoints or knobs");
    joined.tokens.insert(joined.tokens.end(), file.state.tokens.begin(), file.state.tokens.end());
    position = file.position;
  }
  for (SnapshotPart part : required_parts(layout, position)) {
    part.offset = static_cast<std::int64_t>(joined.bytes.size());
    const auto append = [&](std::span<const std::byte> bytes) {
      joined.bytes.insert(joined.bytes.end(), bytes.begin(), bytes.end());
    };
    if (!grows(part.component)) {
      const Snapshot& last = chain.back().state;
      const SnapshotPart* found = find_part(last, part);
      if (found == nullptr || found->begin != part.begin || found->end != part.end ||
          found->size_bytes != part.size_bytes || found->byte_layout != part.byte_layout)
        return bad(fmt::format("the {} of layer {} is missing", to_string(part.component), part.layer));
      append(
          std::span(last.bytes)
              .subspan(static_cast<std::size_t>(found->offset), static_cast<std::size_t>(found->size_bytes)));
    } else {
      const RowLayout& row = part.component == Component::kIndexKeys ? layout.index_key : layout.kv;
      // A part holds all row data, then all scales: the pieces' data first, then the pieces' scales.
      for (const bool scales : {false, true}) {
        std::int64_t next = 0;
        for (const PrefixFile& file : chain) {
          const SnapshotPart* found = find_part(file.state, part);
          if (found == nullptr) continue;  // the piece added no entry of this layer
          const std::int64_t rows = found->end - found->begin;
          if (found->begin != next || found->size_bytes != rows * row.row_bytes() ||
              found->byte_layout != part.byte_layout)
            return bad(fmt::format("the {} of layer {} has a gap", to_string(part.component), part.layer));
          next = found->end;
          const std::int64_t offset = found->offset + (scales ? rows * row.data_bytes : 0);
          append(std::span(file.state.bytes)
                     .subspan(static_cast<std::size_t>(offset),
                              static_cast<std::size_t>(rows * (scales ? row.scale_bytes : row.data_bytes))));
        }
        if (next != part.end)
          return bad(fmt::format("the {} of layer {} is incomplete", to_string(part.component), part.layer));
      }
    }
    const std::span<const std::byte> bytes =
        std::span<const std::byte>(joined.bytes).subspan(static_cast<std::size_t>(part.offset));
    if (static_cast<std::int64_t>(bytes.size()) != part.size_bytes)
      return bad(fmt::format("the {} of layer {} has another size", to_string(part.component), part.layer));
    part.checksum = snapshot_checksum(bytes);
    joined.parts.push_back(std::move(part));
  }
  return joined;
}

}  // namespace pivot
