// What an engine tells about itself: plain figures for /metrics, traces and tests.
//
// Counters only rise; gauges are of the moment after the last step.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "cache/cache_layout.h"

namespace pivot {

// Fixed at creation.
struct EngineCapacity {
  std::int64_t max_context = 0;
  std::int32_t max_sequences = 0;
  std::int32_t step_tokens = 0;
  std::int64_t slot_bytes = 0;                                 // of one sequence
  std::array<std::int64_t, kNumPagePools> page_bytes{};        // by PagePool; 0: no layer uses the pool
  std::array<std::int32_t, kNumPagePools> pages{};             // by PagePool
  std::int64_t state_bytes = 0;                                // allocated: slots, pages, page tables
  std::int64_t workspace_bytes = 0;                            // allocated: activations of a step
  std::array<std::int64_t, kNumComponents> component_bytes{};  // allocated, by Component, padding left out
};

// One kind of memory by its owner: used_by_sequences + cached + free = total. A page that a running sequence
// and the prefix cache share counts as used by the sequence.
struct PoolUse {
  std::int64_t total = 0;
  std::int64_t used = 0;    // held by running sequences
  std::int64_t cached = 0;  // held by the prefix cache alone: evictable
  std::int64_t free = 0;
};

struct PrefixCacheStats {
  std::uint64_t queries = 0;       // requests that looked
  std::uint64_t hits = 0;          // of these, with cached tokens from memory or disk
  std::uint64_t query_tokens = 0;  // prompt tokens of the queries
  std::uint64_t hit_tokens = 0;    // of these, taken from the cache
  std::uint64_t insertions = 0;
  std::uint64_t evictions = 0;  // to make room
  std::int64_t entries = 0;     // gauge
  std::int64_t host_bytes = 0;  // gauge: fixed parts held in host memory
};

struct DiskTierStats {
  std::uint64_t hits = 0;
  std::uint64_t hit_tokens = 0;
  std::uint64_t writes = 0;
  std::uint64_t write_failures = 0;  // disk full, no permission, ...
  std::uint64_t skipped_writes = 0;  // the writer was busy
  std::uint64_t evictions = 0;
  std::uint64_t damaged = 0;  // entries dropped because something in them did not check
  std::int64_t entries = 0;   // gauge
  std::int64_t bytes = 0;     // gauge
};

struct EngineStats {
  // Gauges.
  std::int32_t running = 0;     // choices with a slot
  std::int32_t prefilling = 0;  // of these, still computing their prompt
  std::int32_t waiting = 0;     // requests in the queue, pre-empted choices included
  std::int32_t preempted = 0;   // of these, pre-empted choices
  std::int64_t preempted_bytes = 0;
  PoolUse slots;
  std::array<PoolUse, kNumPagePools> pages;               // by PagePool
  std::array<std::int64_t, kNumComponents> used_bytes{};  // by Component: of slots and pages in use or cached
  // Counters of requests: submitted = finished + cancelled + failed + (waiting or running); refused ones are
  // not submitted. A request with several choices counts once, by its last choice to end (failed before
  // cancelled before finished).
  std::uint64_t submitted = 0;
  std::uint64_t refused = 0;
  std::uint64_t finished = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t failed = 0;
  // Counters of work.
  std::uint64_t steps = 0;
  std::uint64_t prompt_tokens = 0;    // of started requests: computed + cached
  std::uint64_t computed_tokens = 0;  // prompt tokens computed (again, too, after a dropped pre-emption)
  std::uint64_t cached_tokens = 0;    // prompt tokens from the cache
  std::uint64_t generated_tokens = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t recomputed_preemptions = 0;  // of these, whose state was dropped
  std::uint64_t failed_steps = 0;            // the device reported an error
  double step_seconds = 0;                   // spent in forward passes
  double sample_seconds = 0;
  double schedule_seconds = 0;  // everything else between steps, events included
  // Sequences per step: steps with 1, 2, 3-4, 5-8, ... 2^(i-1)+1 to 2^i sequences.
  std::array<std::uint64_t, 14> batch_size_steps{};
  std::uint64_t batch_size_sum = 0;
  std::uint64_t graph_replays = 0;  // where the back-end replays steps
  PrefixCacheStats prefix;
  DiskTierStats disk;
};

// One step, for tracing.
struct StepRecord {
  std::uint64_t index = 0;
  std::chrono::steady_clock::time_point start;  // of the schedule phase
  double schedule_seconds = 0;
  double forward_seconds = 0;
  double sample_seconds = 0;  // sampling and events
  std::int32_t decode_tokens = 0;
  std::int32_t prefill_tokens = 0;
  std::int32_t sequences = 0;
  std::int32_t waiting = 0;
};

}  // namespace pivot
