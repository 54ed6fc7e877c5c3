// A Chrome trace (chrome://tracing, Perfetto) of a server's life: engine steps and the phases of requests.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/error.h"
#include "engine/engine_stats.h"

namespace pivot::server {

// Any thread. Stops writing (and says so in the log) at max_bytes, so that a forgotten trace does not fill a
// disk.
class Trace {
 public:
  static Result<std::unique_ptr<Trace>> create(const std::filesystem::path& path,
                                               std::uint64_t max_bytes = std::uint64_t{1} << 30);
  ~Trace();  // completes the file

  using Clock = std::chrono::steady_clock;
  void step(const StepRecord& record);
  // One phase of a request ("queue", "prefill", "decode"), on a row of its own.
  void phase(std::string_view request_id, std::uint64_t row, std::string_view name, Clock::time_point begin,
             double seconds);

 private:
  Trace() = default;
  void write(const std::string& event);
  double microseconds(Clock::time_point time) const;

  std::mutex mutex_;
  std::ofstream file_;
  Clock::time_point origin_;
  std::uint64_t max_bytes_ = 0;
  std::uint64_t bytes_ = 0;
  bool first_ = true;
};

}  // namespace pivot::server
