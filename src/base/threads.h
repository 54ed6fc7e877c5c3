// A fixed pool of threads with a fixed partition: piece i always does the same work, so results never depend
// on timing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace pivot {

class ThreadPool {
 public:
  // num_threads counts the calling thread; 1 runs everything inline. 0 means one per usable core.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return num_threads_; }

  // Calls work(piece, num_pieces) once for every piece in [0, size()), in parallel, and returns when all are
  // done. REQUIRES: not called from inside work. Calls from several threads are serialised.
  void run(const std::function<void(int piece, int num_pieces)>& work);

  // Splits [0, count) into size() contiguous ranges whose bounds are multiples of `grain` (except the end)
  // and calls work(begin, end) for each non-empty one.
  void for_ranges(std::int64_t count, std::int64_t grain,
                  const std::function<void(std::int64_t begin, std::int64_t end)>& work);

 private:
  struct State;
  int num_threads_;
  std::unique_ptr<State> state_;
};

// Cores this process may run on (its affinity mask), at least 1.
int usable_cores();

}  // namespace pivot
