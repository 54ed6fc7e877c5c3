// A few threads for work that must not hold up I/O or the engine: reading large bodies, tokenizing,
// compiling grammars.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace pivot::server {

class WorkQueue {
 public:
  WorkQueue(int threads, std::size_t max_waiting);
  ~WorkQueue();  // finish()
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // False where too much waits already; the work is then not taken.
  bool post(std::function<void()> work);
  // Takes nothing more, runs what waits, ends the threads. Idempotent; not from inside the work.
  void finish();

 private:
  void run();

  const std::size_t max_waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace pivot::server
