#include "text/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

namespace pivot {
namespace {

constexpr std::size_t kCacheBits = 15;
constexpr std::size_t kShortWordBytes = 48;            // up to here scanning for the lowest rank beats a heap
constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15ull;  // 2^64 / golden ratio: spreads keys over the high bits

constexpr std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

// A heap entry orders by rank, then by position: rank << 36 | position. 2^28 ranks and 64 GiB of word are
// beyond reach.
constexpr int kPositionBits = 36;
constexpr std::uint64_t kPositionMask = (std::uint64_t{1} << kPositionBits) - 1;
constexpr std::size_t kNowhere = ~std::size_t{0};

}  // namespace

Bpe::Workspace::Workspace() : cache_(std::size_t{1} << kCacheBits) {}

void Bpe::Workspace::trim() {
  constexpr std::size_t kKeep = 1 << 14;
  if (nodes_.capacity() > kKeep) std::vector<Node>().swap(nodes_);
  if (heap_.capacity() > kKeep) std::vector<std::uint64_t>().swap(heap_);
}

Bpe::Bpe(const std::array<TokenId, 256>& byte_tokens, const std::vector<BpeMerge>& merges) {
  std::transform(byte_tokens.begin(), byte_tokens.end(), byte_tokens_.begin(),
                 [](TokenId id) { return raw(id); });
  const std::size_t slot_count = std::bit_ceil(std::max<std::size_t>(merges.size() * 2, 2));
  slots_.assign(slot_count, Slot{kEmptyPair, kNoMerge, 0});
  slot_shift_ = 64 - std::countr_zero(slot_count);
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const BpeMerge& merge = merges[rank];
    // A pair listed twice keeps its last rank, as in the reference.
    const std::uint64_t pair = pair_key(raw(merge.left), raw(merge.right));
    slots_[slot_of(pair)] = {pair, static_cast<std::uint32_t>(rank), raw(merge.result)};
  }
}

std::size_t Bpe::slot_of(std::uint64_t pair) const {
  std::size_t at = static_cast<std::size_t>(pair * kOdd >> slot_shift_);
  while (slots_[at].pair != pair && slots_[at].pair != kEmptyPair) at = (at + 1) & (slots_.size() - 1);
  return at;
}

const Bpe::Slot& Bpe::find(std::int32_t left, std::int32_t right) const {
  return slots_[slot_of(pair_key(left, right))];
}

void Bpe::encode(std::string_view word, Workspace& workspace, std::vector<TokenId>& out) const {
  using Entry = Workspace::CacheEntry;
  if (word.size() > Entry::kMaxBytes) {
    if (word.size() <= kShortWordBytes) return merge_short(word, out);
    return merge_long(word, workspace, out);
  }
  std::array<char, 24> padded{};
  std::memcpy(padded.data(), word.data(), word.size());
  std::array<std::uint64_t, 3> part;
  std::memcpy(part.data(), padded.data(), sizeof part);
  std::uint64_t hash = (part[0] ^ word.size()) * kOdd;
  hash = (std::rotl(hash, 29) ^ part[1]) * kOdd;
  hash = (std::rotl(hash, 29) ^ part[2]) * kOdd;
  Entry& entry = workspace.cache_[hash >> (64 - kCacheBits)];
  if (entry.length_bytes == word.size() &&
      std::memcmp(entry.word.data(), padded.data(), Entry::kMaxBytes) == 0) {
    out.insert(out.end(), entry.tokens.begin(), entry.tokens.begin() + entry.token_count);
    return;
  }
  const std::size_t before = out.size();
  merge_short(word, out);
  const std::size_t count = out.size() - before;
  if (count > Entry::kMaxTokens) return;
  std::memcpy(entry.word.data(), padded.data(), Entry::kMaxBytes);
  entry.length_bytes = static_cast<std::uint8_t>(word.size());
  entry.token_count = static_cast<std::uint8_t>(count);
  std::copy(out.begin() + static_cast<std::ptrdiff_t>(before), out.end(), entry.tokens.begin());
}

void Bpe::merge_short(std::string_view word, std::vector<TokenId>& out) const {
  std::array<std::int32_t, kShortWordBytes> token;
  std::array<std::uint32_t, kShortWordBytes> rank;  // of the merge of token i with token i + 1
  std::array<std::int32_t, kShortWordBytes> result;
  std::size_t count = word.size();
  const auto look_up = [&](std::size_t i) {
    const Slot& slot = find(token[i], token[i + 1]);
    rank[i] = slot.rank;
    result[i] = slot.result;
  };
  for (std::size_t i = 0; i < count; ++i) token[i] = byte_tokens_[static_cast<unsigned char>(word[i])];
  for (std::size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    const auto ranks_end = rank.begin() + static_cast<std::ptrdiff_t>(count) - 1;
    const auto lowest = std::min_element(rank.begin(), ranks_end);
    if (*lowest == kNoMerge) break;
    const auto i = static_cast<std::size_t>(lowest - rank.begin());
    token[i] = result[i];
    const std::size_t moved = count - i - 2;  // tokens after the merged pair
    std::memmove(&token[i + 1], token.data() + i + 2, moved * sizeof token[0]);
    if (moved > 0) {
      std::memmove(&rank[i + 1], rank.data() + i + 2, (moved - 1) * sizeof rank[0]);
      std::memmove(&result[i + 1], result.data() + i + 2, (moved - 1) * sizeof result[0]);
    }
    --count;
    if (i > 0) look_up(i - 1);
    if (i + 1 < count) look_up(i);
  }
  for (std::size_t i = 0; i < count; ++i) out.push_back(TokenId{token[i]});
}

void Bpe::merge_long(std::string_view word, Workspace& workspace, std::vector<TokenId>& out) const {
  auto& nodes = workspace.nodes_;
  auto& heap = workspace.heap_;
  nodes.resize(word.size());
  heap.clear();
  const auto candidate = [&](std::size_t at) {
    const std::size_t next = nodes[at].next;
    if (next == kNowhere) return;
    const std::uint32_t rank = find(nodes[at].token, nodes[next].token).rank;
    if (rank != kNoMerge) heap.push_back(std::uint64_t{rank} << kPositionBits | at);
  };
  for (std::size_t i = 0; i < word.size(); ++i) {
    nodes[i] = {byte_tokens_[static_cast<unsigned char>(word[i])], i == 0 ? kNowhere : i - 1,
                i + 1 == word.size() ? kNowhere : i + 1};
  }
  for (std::size_t i = 0; i < word.size(); ++i) candidate(i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto push = [&](std::size_t at) {
    const std::size_t before = heap.size();
    candidate(at);
    if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  constexpr std::int32_t kGone = -1;  // absorbed by its left neighbour
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const std::uint64_t top = heap.back();
    heap.pop_back();
    Workspace::Node& node = nodes[top & kPositionMask];
    if (node.token == kGone || node.next == kNowhere) continue;
    Workspace::Node& right = nodes[node.next];
    const Slot& merge = find(node.token, right.token);
    if (merge.rank != top >> kPositionBits) continue;  // an older candidate: one side has grown since
    node.token = merge.result;
    node.next = right.next;
    right.token = kGone;
    if (node.next != kNowhere) nodes[node.next].previous = top & kPositionMask;
    if (node.previous != kNowhere) push(node.previous);
    push(top & kPositionMask);
  }
  for (std::size_t at = 0; at != kNowhere; at = nodes[at].next) out.push_back(TokenId{nodes[at].token});
}

}  // namespace pivot
