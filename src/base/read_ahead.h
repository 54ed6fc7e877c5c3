// Reads a list of jobs from files in order, some steps ahead of the threads that work on them, past the page
// cache.
//
// Two threads read; any number of threads call next(). Memory is bounded by the buffers of `depth` jobs,
// whatever the files' size. Reads are direct (O_DIRECT) where the file system allows it, because a checkpoint
// is larger than memory and would only push out what others use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"

namespace pivot {

struct ReadRange {
  std::uint32_t file = 0;  // index into the reader's files
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

struct ReadJob {
  std::vector<ReadRange> ranges;  // read together, handed out together
};

class ReadAhead {
 public:
  // Bytes of one job, valid until this object is destroyed; destroying it lets the reader go on.
  class Loaded {
   public:
    Loaded() = default;
    Loaded(Loaded&& other) noexcept;
    Loaded& operator=(Loaded&& other) noexcept;
    ~Loaded();
    std::size_t job() const { return job_; }
    std::size_t size() const { return ranges_.size(); }  // ranges
    std::span<const std::byte> range(std::size_t index) const { return ranges_[index]; }

   private:
    friend class ReadAhead;
    ReadAhead* owner_ = nullptr;
    std::size_t slot_ = 0;
    std::size_t job_ = 0;
    std::vector<std::span<const std::byte>> ranges_;
  };

  static Result<std::unique_ptr<ReadAhead>> start(const std::vector<std::filesystem::path>& files,
                                                  std::vector<ReadJob> jobs, int depth = 8);
  ~ReadAhead();  // stops reading; REQUIRES: every Loaded is gone
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // The next job in list order. An empty optional after the last one or after stop(); an Error where a read
  // failed (the same one for every caller from then on).
  Result<std::optional<Loaded>> next();
  void stop();

 private:
  struct State;
  explicit ReadAhead(std::unique_ptr<State> state);
  void read_jobs();
  std::unique_ptr<State> state_;
};

}  // namespace pivot
