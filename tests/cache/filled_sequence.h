// Sequences whose every cached byte follows from the tokens before it, without a model: a byte that belongs
// to another sequence, another position or nobody is seen at once.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/sequence_state.h"
#include "cache/snapshot.h"

namespace pivot::test {

// Six layers (ratios 0, 0, 4, 128, 4, 128) with narrow rows.
CacheLayout narrow_layout();
std::shared_ptr<CachePool> narrow_pool(std::int32_t slots, std::int32_t pages);

// Reserves, writes what a step of these tokens would write, appends. False when the pool is full (nothing
// changed).
bool compute(SequenceState& sequence, std::span<const TokenId> ids);

// What is wrong with a snapshot's bytes: the first part whose rows are not those of its tokens; empty:
// nothing.
std::string fault(const Snapshot& snapshot, const CacheLayout& layout);
std::string fault(const SequenceState& sequence);

// `count` ids of a family: two calls with one family agree on their common length.
std::vector<TokenId> family(std::uint32_t number, std::int64_t count);

}  // namespace pivot::test
