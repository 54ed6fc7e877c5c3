#include "base/threads.h"

#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace pivot {

struct ThreadPool::State {
  std::mutex call_mutex;  // serialises run() callers
  std::mutex mutex;
  std::condition_variable start, done;
  const std::function<void(int, int)>* work = nullptr;
  std::uint64_t generation = 0;
  int running = 0;
  bool stopping = false;
  std::vector<std::thread> threads;
};

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0)
    return std::max(1u, std::thread::hardware_concurrency());
  return std::max(1, CPU_COUNT(&set));
}

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads > 0 ? num_threads : usable_cores()), state_(std::make_unique<State>()) {
  for (int piece = 1; piece < num_threads_; ++piece) {
    state_->threads.emplace_back([this, piece] {
      State& s = *state_;
      std::uint64_t seen = 0;
      while (true) {
        const std::function<void(int, int)>* work = nullptr;
        {
          std::unique_lock lock(s.mutex);
          s.start.wait(lock, [&] { return s.stopping || s.generation != seen; });
          if (s.stopping) return;
          seen = s.generation;
          work = s.work;
        }
        (*work)(piece, num_threads_);
        std::lock_guard lock(s.mutex);
        if (--s.running == 0) s.done.notify_one();
      }
    });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->start.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

void ThreadPool::run(const std::function<void(int, int)>& work) {
  std::lock_guard call(state_->call_mutex);
  if (num_threads_ > 1) {
    {
      std::lock_guard lock(state_->mutex);
      state_->work = &work;
      state_->running = num_threads_ - 1;
      ++state_->generation;
    }
    state_->start.notify_all();
  }
  work(0, num_threads_);
  if (num_threads_ > 1) {
    std::unique_lock lock(state_->mutex);
    state_->done.wait(lock, [&] { return state_->running == 0; });
    state_->work = nullptr;
  }
}

void ThreadPool::for_ranges(std::int64_t count, std::int64_t grain,
                            const std::function<void(std::int64_t, std::int64_t)>& work) {
  if (count <= 0) return;
  const std::int64_t grains = (count + grain - 1) / grain;
  if (num_threads_ == 1 || grains == 1) return work(0, count);
  run([&](int piece, int num_pieces) {
    const std::int64_t begin = grains * piece / num_pieces * grain;
    const std::int64_t end = std::min(count, grains * (piece + 1) / num_pieces * grain);
    if (begin < end) work(begin, end);
  });
}

}  // namespace pivot
