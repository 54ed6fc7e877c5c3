#include "server/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <sstream>

#include "base/check.h"
#include "server/metrics/process_figures.h"

namespace pivot {
namespace {

using Labels = prometheus::Labels;
constexpr std::size_t kNumMetrics = static_cast<std::size_t>(MetricId::kProcessOpenFiles) + 1;

bool lists(const LabelSpec& label, std::string_view value) {
  return std::find(label.values.begin(), label.values.end(), value) != label.values.end();
}

Labels make_labels(const MetricSpec& spec, std::initializer_list<std::string_view> values) {
  PIVOT_CHECK(values.size() == spec.labels.size(), "{} has {} labels, not {}", spec.name, spec.labels.size(),
              values.size());
  Labels labels;
  const std::string_view* value = values.begin();
  for (const LabelSpec& label : spec.labels) {
    const bool known = lists(label, *value);
    PIVOT_CHECK(known || lists(label, "other"), "{}: label {} has no value '{}'", spec.name, label.name,
                *value);
    labels.emplace(label.name, known ? *value : "other");
    ++value;
  }
  return labels;
}

// Calls visit(Labels) for every combination of the listed values.
template <class Visit>
void for_each_series(std::span<const LabelSpec> labels, Labels chosen, const Visit& visit) {
  if (labels.empty()) return visit(chosen);
  for (const std::string_view value : labels.front().values) {
    chosen[std::string(labels.front().name)] = value;
    for_each_series(labels.subspan(1), chosen, visit);
  }
}

// Of each metric, the family of its type.
struct Families {
  prometheus::Family<prometheus::Counter>* counter = nullptr;
  prometheus::Family<prometheus::Gauge>* gauge = nullptr;
  prometheus::Family<prometheus::Histogram>* histogram = nullptr;
};

}  // namespace

void Counter::add(double by) const { counter_->Increment(by); }
double Counter::value() const { return counter_->Value(); }
void Gauge::set(double value) const { gauge_->Set(value); }
void Gauge::add(double by) const { by >= 0 ? gauge_->Increment(by) : gauge_->Decrement(-by); }
double Gauge::value() const { return gauge_->Value(); }
void Histogram::observe(double value) const { histogram_->Observe(value); }

struct Metrics::Impl {
  prometheus::Registry registry;
  std::array<Families, kNumMetrics> families;
  std::array<prometheus::Histogram::BucketBoundaries, kNumMetrics> buckets;
  std::mutex requests;
  std::mutex collecting;  // one rendering at a time: what it refreshes mirrors absolute figures
  std::vector<std::function<void()>> refresh;

  void declare(const MetricSpec& spec) {
    const auto index = static_cast<std::size_t>(spec.id);
    const std::string name(spec.name);
    const std::string help(spec.help);
    Families& of = families[index];
    switch (spec.type) {
      case MetricType::kCounter:
        of.counter = &prometheus::BuildCounter().Name(name).Help(help).Register(registry);
        break;
      case MetricType::kGauge:
        of.gauge = &prometheus::BuildGauge().Name(name).Help(help).Register(registry);
        break;
      case MetricType::kHistogram:
        of.histogram = &prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
        buckets[index].assign(spec.buckets.begin(), spec.buckets.end());
        break;
    }
    if (spec.all_series)
      for_each_series(spec.labels, {}, [&](const Labels& labels) { add_series(index, labels); });
  }

  void add_series(std::size_t index, const Labels& labels) {
    const Families& of = families[index];
    if (of.counter) of.counter->Add(labels);
    if (of.gauge) of.gauge->Add(labels);
    if (of.histogram) of.histogram->Add(labels, buckets[index]);
  }
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {
  for (const MetricSpec& spec : metric_table()) impl_->declare(spec);
  // The pairs that occur: an outcome has its own reasons.
  for (int end = 0; end < kNumRequestEnds; ++end) {
    const auto reason = static_cast<RequestEnd>(end);
    counter(MetricId::kRequests, {to_string(outcome_of(reason)), to_string(reason)});
  }
  gauge(MetricId::kProcessStart).set(process_start_time_seconds());
}

Metrics::~Metrics() = default;

Counter Metrics::counter(MetricId id, std::initializer_list<std::string_view> labels) const {
  const Families& of = impl_->families[static_cast<std::size_t>(id)];
  PIVOT_CHECK(of.counter != nullptr, "{} is no counter", metric(id).name);
  return Counter(&of.counter->Add(make_labels(metric(id), labels)));
}

Gauge Metrics::gauge(MetricId id, std::initializer_list<std::string_view> labels) const {
  const Families& of = impl_->families[static_cast<std::size_t>(id)];
  PIVOT_CHECK(of.gauge != nullptr, "{} is no gauge", metric(id).name);
  return Gauge(&of.gauge->Add(make_labels(metric(id), labels)));
}

Histogram Metrics::histogram(MetricId id, std::initializer_list<std::string_view> labels) const {
  const auto index = static_cast<std::size_t>(id);
  const Families& of = impl_->families[index];
  PIVOT_CHECK(of.histogram != nullptr, "{} is no histogram", metric(id).name);
  return Histogram(&of.histogram->Add(make_labels(metric(id), labels), impl_->buckets[index]));
}

void Metrics::set_info(MetricId id, const std::vector<std::string>& labels) {
  const MetricSpec& spec = metric(id);
  const Families& of = impl_->families[static_cast<std::size_t>(id)];
  PIVOT_CHECK(of.gauge != nullptr && labels.size() == spec.labels.size(), "{} with {} labels", spec.name,
              labels.size());
  Labels chosen;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    PIVOT_CHECK(spec.labels[i].values.empty(), "{}: label {} lists its values", spec.name,
                spec.labels[i].name);
    chosen.emplace(spec.labels[i].name, labels[i]);
  }
  of.gauge->Add(chosen).Set(1);
}

void Metrics::on_collect(std::function<void()> refresh) {
  const std::lock_guard lock(impl_->collecting);
  impl_->refresh.push_back(std::move(refresh));
}

std::mutex& Metrics::request_lock() const { return impl_->requests; }

std::string Metrics::render() const {
  const std::lock_guard lock(impl_->collecting);
  const ProcessFigures process = process_figures();
  gauge(MetricId::kProcessResident).set(static_cast<double>(process.resident_bytes));
  gauge(MetricId::kProcessOpenFiles).set(process.open_files);
  const Counter cpu = counter(MetricId::kProcessCpu);
  cpu.add(std::max(0.0, process.cpu_seconds - cpu.value()));
  for (const std::function<void()>& refresh : impl_->refresh) refresh();

  // The library keeps series in hash order; a scrape that lists them the same way every time can be compared.
  std::vector<prometheus::MetricFamily> families;
  {
    const std::lock_guard requests(impl_->requests);
    families = impl_->registry.Collect();
  }
  std::sort(families.begin(), families.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (prometheus::MetricFamily& family : families) {
    std::sort(family.metric.begin(), family.metric.end(),
              [](const auto& a, const auto& b) { return a.label < b.label; });
  }
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  return std::move(text).str();
}

}  // namespace pivot
