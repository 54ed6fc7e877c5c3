#include "server/handlers/trace.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

namespace pivot::server {

Result<std::unique_ptr<Trace>> Trace::create(const std::filesystem::path& path, std::uint64_t max_bytes) {
  std::unique_ptr<Trace> trace(new Trace);
  trace->file_.open(path, std::ios::trunc);
  if (!trace->file_) {
    return fail(ErrorCode::kCannotCreate, "cannot write the trace {}; choose a path in a folder that exists",
                path.string());
  }
  trace->origin_ = Clock::now();
  trace->max_bytes_ = max_bytes;
  trace->file_ << "[\n";
  return trace;
}

Trace::~Trace() { file_ << "\n]\n"; }

double Trace::microseconds(Clock::time_point time) const {
  return std::chrono::duration<double, std::micro>(time - origin_).count();
}

void Trace::write(const std::string& event) {
  const std::lock_guard lock(mutex_);
  if (bytes_ >= max_bytes_) return;
  bytes_ += event.size() + 2;
  file_ << (first_ ? "" : ",\n") << event;
  first_ = false;
  if (bytes_ >= max_bytes_)
    spdlog::warn("the trace has reached {} bytes; nothing more is written to it", max_bytes_);
}

void Trace::step(const StepRecord& record) {
  double at = microseconds(record.start);
  const auto part = [&](std::string_view name, double seconds, const std::string& arguments) {
    write(fmt::format(R"({{"name":"{}","ph":"X","pid":1,"tid":1,"ts":{:.1f},"dur":{:.1f},"args":{{{}}}}})",
                      name, at, seconds * 1e6, arguments));
    at += seconds * 1e6;
  };
  part("schedule", record.schedule_seconds,
       fmt::format(R"("step":{},"waiting":{})", record.index, record.waiting));
  part("forward", record.forward_seconds,
       fmt::format(R"("step":{},"decode_tokens":{},"prefill_tokens":{},"sequences":{})", record.index,
                   record.decode_tokens, record.prefill_tokens, record.sequences));
  part("sample", record.sample_seconds, fmt::format(R"("step":{})", record.index));
}

void Trace::phase(std::string_view request_id, std::uint64_t row, std::string_view name,
                  Clock::time_point begin, double seconds) {
  write(fmt::format(
      R"({{"name":"{}","ph":"X","pid":2,"tid":{},"ts":{:.1f},"dur":{:.1f},"args":{{"request":"{}"}}}})", name,
      row, microseconds(begin), seconds * 1e6, request_id));
}

}  // namespace pivot::server
