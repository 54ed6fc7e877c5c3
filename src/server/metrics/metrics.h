// The live metrics of one server. All methods may be called from any thread.
//
// Handles are looked up once and kept: adding to one is an atomic operation (a short lock for histograms).
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "server/metrics/metric_table.h"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace pivot {

class Counter {
 public:
  void add(double by = 1) const;  // REQUIRES: by >= 0
  double value() const;

 private:
  friend class Metrics;
  explicit Counter(prometheus::Counter* counter) : counter_(counter) {}
  prometheus::Counter* counter_;
};

class Gauge {
 public:
  void set(double value) const;
  void add(double by) const;
  double value() const;

 private:
  friend class Metrics;
  explicit Gauge(prometheus::Gauge* gauge) : gauge_(gauge) {}
  prometheus::Gauge* gauge_;
};

class Histogram {
 public:
  void observe(double value) const;

 private:
  friend class Metrics;
  explicit Histogram(prometheus::Histogram* histogram) : histogram_(histogram) {}
  prometheus::Histogram* histogram_;
};

class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // The series of a metric with these label values, in the table's order. A value that the table does not
  // list becomes "other" where the label has that value. REQUIRES: the metric is of that type, as many values
  // as labels, each listed (or "other" is).
  Counter counter(MetricId id, std::initializer_list<std::string_view> labels = {}) const;
  Gauge gauge(MetricId id, std::initializer_list<std::string_view> labels = {}) const;
  Histogram histogram(MetricId id, std::initializer_list<std::string_view> labels = {}) const;

  // Adds the series of an identity gauge with these label texts, with the value 1. The same texts again
  // change nothing. REQUIRES: every label of the metric is one that the program sets; as many texts as
  // labels.
  void set_info(MetricId id, const std::vector<std::string>& labels);

  // Runs before each rendering, to refresh gauges that mirror other figures.
  void on_collect(std::function<void()> refresh);

  // Text format 0.0.4; metrics by name, series by their labels.
  std::string render() const;
  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

 private:
  friend class RequestMetrics;
  // Held while a request is counted as received or ended, and while a scrape reads: a scrape never sees a
  // request between two of its counters.
  std::mutex& request_lock() const;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// One request from its arrival to its end: whoever makes one has it counted as received, and it is counted
// as ended exactly once, whatever happens. Movable; one thread at a time. The Metrics must outlive it.
class RequestMetrics {
 public:
  // Counts one request as received. `endpoint` is a value of the label `endpoint` of
  // pivot_requests_received_total ("chat_completions", ...).
  RequestMetrics(Metrics& metrics, std::string_view endpoint);
  // Ends it as failed for kInternal where nobody said otherwise.
  ~RequestMetrics();
  RequestMetrics(RequestMetrics&&) noexcept;
  RequestMetrics& operator=(RequestMetrics&&) = delete;

  // It left the queue.
  void started(std::int64_t prompt_tokens, double queue_seconds);
  // One token of a choice was generated; the first one of choice 0 is the time to the first token.
  void token(std::int32_t choice);
  // The first call counts, later ones do nothing. `prefill_seconds` and `decode_seconds` as the engine
  // measured them; not negative.
  void end(RequestEnd end, double prefill_seconds = 0, double decode_seconds = 0);
  bool ended() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pivot
