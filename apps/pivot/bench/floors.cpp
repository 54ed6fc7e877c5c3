// measure_floors: loops that do nothing but read, and nothing but multiply and add.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>

#include "base/threads.h"
#include "bench/machine.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pivot::cli {
namespace {

constexpr int kReadRuns = 5, kPeakRuns = 5;
constexpr std::int64_t kPeakRounds = 1 << 22;  // tens of milliseconds
constexpr std::int64_t kStreams = 4;           // places of a thread's share that are read in turn
constexpr std::int64_t kLine = 64;

// Sums every word of [data, data + bytes), bytes a multiple of 4096, as `streams` sequential streams.
using Read = std::uint64_t (*)(const std::byte* data, std::int64_t bytes, std::int64_t streams);
// Runs `rounds` rounds of independent multiply-adds and returns something that depends on all of them.
using Compute = float (*)(std::int64_t rounds);

// What the loops compute must be needed by someone.
std::atomic<std::uint64_t> sink{0};

using Bits16 = std::uint64_t __attribute__((vector_size(16)));
using Floats16 = float __attribute__((vector_size(16)));

std::uint64_t read_portable(const std::byte* data, std::int64_t bytes, std::int64_t streams) {
  Bits16 sum[4] = {};
  const std::int64_t part = bytes / streams;
  for (std::int64_t at = 0; at < part; at += kLine)
    for (std::int64_t s = 0; s < streams; ++s)
      for (int i = 0; i < 4; ++i) {
        Bits16 value;
        std::memcpy(&value, data + s * part + at + 16 * i, 16);
        sum[i] += value;
      }
  const Bits16 all = sum[0] + sum[1] + sum[2] + sum[3];
  return all[0] + all[1];
}

constexpr int kPortableChains = 8;
float fma_portable(std::int64_t rounds) {
  Floats16 acc[kPortableChains] = {};
  const Floats16 a = {1.0f, 0.5f, 0.25f, 0.125f}, b = {0.5f, 0.5f, 0.5f, 0.5f};
  for (std::int64_t i = 0; i < rounds; ++i) {
    for (Floats16& x : acc) x = x * b + a;
    __asm__ volatile("" : : : "memory");
  }
  float sum = 0;
  for (const Floats16& x : acc) sum += x[0] + x[1] + x[2] + x[3];
  return sum;
}

#if defined(__x86_64__)

__attribute__((target("avx2"))) std::uint64_t read_avx2(const std::byte* data, std::int64_t bytes,
                                                        std::int64_t streams) {
  __m256i even = _mm256_setzero_si256(), odd = even;
  const std::int64_t part = bytes / streams;
  for (std::int64_t at = 0; at < part; at += 2 * kLine)
    for (std::int64_t s = 0; s < streams; ++s) {
      const auto* p = reinterpret_cast<const __m256i*>(data + s * part + at);
      // A page ahead: further than the hardware looks on its own.
      _mm_prefetch(reinterpret_cast<const char*>(p) + 4096, _MM_HINT_NTA);
      _mm_prefetch(reinterpret_cast<const char*>(p) + 4096 + kLine, _MM_HINT_NTA);
      even = _mm256_add_epi64(even, _mm256_add_epi64(_mm256_loadu_si256(p), _mm256_loadu_si256(p + 2)));
      odd = _mm256_add_epi64(odd, _mm256_add_epi64(_mm256_loadu_si256(p + 1), _mm256_loadu_si256(p + 3)));
    }
  alignas(32) std::uint64_t lanes[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), _mm256_add_epi64(even, odd));
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

__attribute__((target("avx512f"))) std::uint64_t read_avx512(const std::byte* data, std::int64_t bytes,
                                                             std::int64_t streams) {
  __m512i even = _mm512_setzero_si512(), odd = even;
  const std::int64_t part = bytes / streams;
  for (std::int64_t at = 0; at < part; at += 2 * kLine)
    for (std::int64_t s = 0; s < streams; ++s) {
      const std::byte* p = data + s * part + at;
      _mm_prefetch(reinterpret_cast<const char*>(p) + 4096, _MM_HINT_NTA);
      _mm_prefetch(reinterpret_cast<const char*>(p) + 4096 + kLine, _MM_HINT_NTA);
      even = _mm512_add_epi64(even, _mm512_loadu_si512(p));
      odd = _mm512_add_epi64(odd, _mm512_loadu_si512(p + kLine));
    }
  alignas(64) std::uint64_t lanes[8];
  _mm512_store_si512(lanes, _mm512_add_epi64(even, odd));
  return lanes[0] + lanes[1] + lanes[2] + lanes[3] + lanes[4] + lanes[5] + lanes[6] + lanes[7];
}

constexpr int kChains = 12;  // covers the latency of two units

__attribute__((target("avx2,fma"))) float fma_avx2(std::int64_t rounds) {
  __m256 acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = _mm256_set1_ps(0.001f * static_cast<float>(i));
  const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.75f);
  for (std::int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) acc[c] = _mm256_fmadd_ps(acc[c], a, b);
  __m256 sum = acc[0];
  for (int c = 1; c < kChains; ++c) sum = _mm256_add_ps(sum, acc[c]);
  return _mm256_cvtss_f32(sum);
}

// The byte dot of AVX2 is three instructions: products in pairs, pairs to int32, the sum.
__attribute__((target("avx2"))) float dot_avx2(std::int64_t rounds) {
  __m256i acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = _mm256_set1_epi32(i);
  const __m256i ones = _mm256_set1_epi16(1), key = _mm256_set1_epi8(3);
  __m256i query = _mm256_set1_epi8(5);
  for (std::int64_t i = 0; i < rounds; ++i) {
    __asm__ volatile("" : "+x"(query));
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      __m256i q = query;
      __asm__("" : "+x"(q));  // twelve products, not one
      acc[c] = _mm256_add_epi32(acc[c], _mm256_madd_epi16(_mm256_maddubs_epi16(q, key), ones));
    }
  }
  __m256i sum = acc[0];
  for (int c = 1; c < kChains; ++c) sum = _mm256_add_epi32(sum, acc[c]);
  return static_cast<float>(_mm256_extract_epi32(sum, 0));
}

__attribute__((target("avx512f"))) float fma_avx512(std::int64_t rounds) {
  __m512 acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = _mm512_set1_ps(0.001f * static_cast<float>(i));
  const __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.75f);
  for (std::int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) acc[c] = _mm512_fmadd_ps(acc[c], a, b);
  __m512 sum = acc[0];
  for (int c = 1; c < kChains; ++c) sum = _mm512_add_ps(sum, acc[c]);
  alignas(64) float lanes[16];  // gcc 12 warns of its own reduction
  _mm512_store_ps(lanes, sum);
  return lanes[0] + lanes[15];
}

__attribute__((target("avx512f,avx512vnni"))) float dot_avx512(std::int64_t rounds) {
  __m512i acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = _mm512_set1_epi32(i);
  const __m512i query = _mm512_set1_epi8(5), key = _mm512_set1_epi8(3);
  for (std::int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) acc[c] = _mm512_dpbusd_epi32(acc[c], query, key);
  __m512i sum = acc[0];
  for (int c = 1; c < kChains; ++c) sum = _mm512_add_epi32(sum, acc[c]);
  alignas(64) std::int32_t lanes[16];
  _mm512_store_si512(lanes, sum);
  return static_cast<float>(lanes[0] + lanes[15]);
}

__attribute__((target("avx512f,avx512bf16"))) float bf16_avx512(std::int64_t rounds) {
  __m512 acc[kChains];
  for (int i = 0; i < kChains; ++i) acc[i] = _mm512_set1_ps(0.001f * static_cast<float>(i));
  const __m512bh a = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5f), _mm512_set1_ps(0.25f));
  for (std::int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) acc[c] = _mm512_dpbf16_ps(acc[c], a, a);
  __m512 sum = acc[0];
  for (int c = 1; c < kChains; ++c) sum = _mm512_add_ps(sum, acc[c]);
  alignas(64) float lanes[16];  // gcc 12 warns of its own reduction
  _mm512_store_ps(lanes, sum);
  return lanes[0] + lanes[15];
}

#endif

double seconds_of(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double read_rate(ThreadPool& pool, Read read, const std::byte* data, std::int64_t bytes, bool all) {
  constexpr std::int64_t kGrain = 2 * kStreams * 4096;
  double best = 0;
  for (int run = 0; run < kReadRuns; ++run)
    for (const std::int64_t streams : {std::int64_t{1}, kStreams}) {
      const auto part = [&](std::int64_t begin, std::int64_t end) {
        sink += read(data + begin, end - begin, streams);
      };
      const double seconds = seconds_of([&] { all ? pool.for_ranges(bytes, kGrain, part) : part(0, bytes); });
      best = std::max(best, static_cast<double>(bytes) / seconds);
    }
  return best;
}

Peak peak_of(ThreadPool& pool, std::string_view name, Compute compute, double flops_per_round) {
  Peak peak{name, 0, 0};
  const auto work = [&](int, int) { sink += static_cast<std::uint64_t>(compute(kPeakRounds) != 0.0f); };
  const double flops = flops_per_round * static_cast<double>(kPeakRounds);
  for (int run = 0; run < kPeakRuns; ++run) {
    peak.one_thread = std::max(peak.one_thread, flops / seconds_of([&] { work(0, 1); }));
    peak.all_threads = std::max(peak.all_threads, flops * pool.size() / seconds_of([&] { pool.run(work); }));
  }
  return peak;
}

}  // namespace

Result<Floors> measure_floors(ThreadPool& pool, std::string_view isa, std::int64_t buffer_bytes) {
  Floors floors;
  constexpr std::int64_t kUnit = 64 * 4096;  // whole grains and whole streams
  floors.buffer_bytes = std::max<std::int64_t>(buffer_bytes / kUnit, 1) * kUnit;
  constexpr std::align_val_t kAlignment{4096};
  // Loads of the last page prefetch beyond it; prefetches cannot fault, so nothing needs to be there.
  auto* memory = static_cast<std::byte*>(
      ::operator new(static_cast<std::size_t>(floors.buffer_bytes), kAlignment, std::nothrow));
  if (memory == nullptr)
    return fail(ErrorCode::kOutOfMemory,
                "measuring the read bandwidth needs {} bytes; the system refused them", floors.buffer_bytes);
  const std::unique_ptr<std::byte, void (*)(std::byte*)> buffer(
      memory, [](std::byte* p) { ::operator delete (p, std::align_val_t{4096}); });
  // Written by the threads that will read it, and not with zeros, which a kernel may hold in one page.
  pool.for_ranges(floors.buffer_bytes, kUnit, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; at += 4096) std::memset(memory + at, 1 + (at >> 12 & 63), 4096);
  });
  Read read = read_portable;
#if defined(__x86_64__)
  const bool wide = isa.starts_with("avx512") && __builtin_cpu_supports("avx512f");
  const bool avx2 =
      (wide || isa == "avx2") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2) read = read_avx2;
  if (wide) read = read_avx512;
#endif
  floors.read_one_thread = read_rate(pool, read, memory, floors.buffer_bytes, false);
  floors.read_all_threads =
      std::max(floors.read_one_thread, read_rate(pool, read, memory, floors.buffer_bytes, true));
#if defined(__x86_64__)
  if (wide) {
    floors.peaks.push_back(peak_of(pool, "fp32 fma", fma_avx512, 2.0 * 16 * kChains));
    if (__builtin_cpu_supports("avx512vnni"))
      floors.peaks.push_back(peak_of(pool, "int8 dot", dot_avx512, 2.0 * 64 * kChains));
    if (__builtin_cpu_supports("avx512bf16"))
      floors.peaks.push_back(peak_of(pool, "bf16 dot", bf16_avx512, 2.0 * 32 * kChains));
  } else if (avx2) {
    floors.peaks.push_back(peak_of(pool, "fp32 fma", fma_avx2, 2.0 * 8 * kChains));
    floors.peaks.push_back(peak_of(pool, "int8 dot", dot_avx2, 2.0 * 32 * kChains));
  }
#else
  (void)isa;
#endif
  if (floors.peaks.empty())
    floors.peaks.push_back(peak_of(pool, "fp32 fma", fma_portable, 2.0 * 4 * kPortableChains));
  return floors;
}

}  // namespace pivot::cli
