// What the files of this folder share: threads that start together, random codes, medians, and the machine's
// own yardsticks measured in turn with the kernels (other work on the machine then slows both).
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace lab {

inline int num_threads = 2;

// The clock: the wall's, or with LAB_CPU_CLOCK set the CPU seconds of the slowest thread, which stay
// meaningful on a machine that is busy with other work.
inline const bool cpu_clock = std::getenv("LAB_CPU_CLOCK") != nullptr;

inline double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Seconds until all threads have done work(thread).
inline double run(const std::function<void(int)>& work) {
  std::barrier start(num_threads + 1);
  std::vector<std::thread> threads;
  std::vector<double> own(static_cast<std::size_t>(num_threads));
  for (int t = 0; t < num_threads; ++t)
    threads.emplace_back([&, t] {
      start.arrive_and_wait();
      const double begin = thread_seconds();
      work(t);
      own[static_cast<std::size_t>(t)] = thread_seconds() - begin;
    });
  start.arrive_and_wait();
  const auto begin = std::chrono::steady_clock::now();
  for (std::thread& thread : threads) thread.join();
  if (cpu_clock) return *std::max_element(own.begin(), own.end());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <class T>
struct Buffer {
  T* data;
  std::size_t count;
  explicit Buffer(std::size_t n)
      : data(static_cast<T*>(::operator new (n * sizeof(T) + 8192, std::align_val_t{64}))), count(n) {}
  ~Buffer() { ::operator delete (data, std::align_val_t{64}); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};

struct Random {
  std::uint64_t state = 88172645463325252ull;
  std::uint32_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<std::uint32_t>(state >> 16);
  }
  float normal() {
    float sum = 0;
    for (int i = 0; i < 8; ++i) sum += static_cast<float>(next() & 0xffff) / 65536.0f - 0.5f;
    return sum * 1.22f;
  }
};

inline volatile std::uint64_t sink = 0;

// Reads every byte once, four cache lines in flight a step.
inline void read_bytes(const std::uint8_t* p, std::size_t bytes) {
  __m256i acc[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                    _mm256_setzero_si256()};
  for (std::size_t i = 0; i + 128 <= bytes; i += 128)
    for (std::size_t k = 0; k < 4; ++k)
      acc[k] = _mm256_or_si256(acc[k], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i + 32 * k)));
  const __m256i all = _mm256_or_si256(_mm256_or_si256(acc[0], acc[1]), _mm256_or_si256(acc[2], acc[3]));
  sink = sink + static_cast<std::uint64_t>(_mm256_extract_epi64(all, 0));
}

// Multiply-adds of 8 lanes a second on all threads, none waiting for memory; twelve chains.
inline double multiply_adds_per_second() {
  constexpr int kRounds = 4'000'000;
  const double seconds = run([](int t) {
    __m256 acc[12];
    for (int k = 0; k < 12; ++k) acc[k] = _mm256_set1_ps(static_cast<float>(k + t));
    const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.5f);
    for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
      for (int k = 0; k < 12; ++k) acc[k] = _mm256_fmadd_ps(acc[k], a, b);
    }
    for (int k = 1; k < 12; ++k) acc[0] = _mm256_add_ps(acc[0], acc[k]);
    sink = sink + static_cast<std::uint64_t>(_mm256_cvtss_f32(acc[0]));
  });
  return 12.0 * kRounds * num_threads / seconds;
}

}  // namespace lab
