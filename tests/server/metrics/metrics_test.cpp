#include "server/metrics/metrics.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "base/file.h"
#include "server/metrics/engine_metrics.h"
#include "support/test_data.h"
#include "text/grammar/grammar.h"

namespace pivot {
namespace {

// "name{labels}" to value.
std::map<std::string, double> samples(const std::string& text) {
  std::map<std::string, double> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::size_t space = line.rfind(' ');
    EXPECT_TRUE(values.emplace(line.substr(0, space), std::stod(line.substr(space + 1))).second) << line;
  }
  return values;
}

double sum(const std::map<std::string, double>& values, const std::string& prefix) {
  double total = 0;
  for (const auto& [name, value] : values)
    if (name.starts_with(prefix)) total += value;
  return total;
}

// ---- the table ----

TEST(MetricTable, NamesFollowPrometheus) {
  std::set<std::string_view> names;
  for (const MetricSpec& spec : metric_table()) {
    const std::string name(spec.name);
    EXPECT_TRUE(names.insert(spec.name).second) << name;
    EXPECT_TRUE(std::regex_match(name, std::regex("pivot_[a-z][a-z0-9_]*"))) << name;
    EXPECT_EQ(name.ends_with("_total"), spec.type == MetricType::kCounter) << name;
    EXPECT_FALSE(std::regex_search(name, std::regex("_(ms|milli|micro|gb|mb|kb|percent)(_|$)"))) << name;
    if (spec.unit == "seconds" || spec.unit == "bytes" || spec.unit == "ratio")
      EXPECT_NE(name.find("_" + std::string(spec.unit)), std::string::npos) << name;
    EXPECT_TRUE(spec.help.ends_with(".")) << name;
    EXPECT_EQ(spec.buckets.empty(), spec.type != MetricType::kHistogram) << name;
    EXPECT_TRUE(std::is_sorted(spec.buckets.begin(), spec.buckets.end())) << name;
  }
}

TEST(MetricTable, LabelSetsAreBounded) {
  for (const MetricSpec& spec : metric_table()) {
    double series = 1;
    for (const LabelSpec& label : spec.labels) {
      EXPECT_TRUE(std::regex_match(std::string(label.name), std::regex("[a-z_]+"))) << spec.name;
      // Free texts belong to identity alone.
      EXPECT_EQ(label.values.empty(), spec.section == "identity") << spec.name;
      if (!label.values.empty()) series *= static_cast<double>(label.values.size());
      EXPECT_EQ(std::set<std::string_view>(label.values.begin(), label.values.end()).size(),
                label.values.size())
          << spec.name;
    }
    if (spec.all_series) {
      EXPECT_LE(series, 40) << spec.name;
    }
    EXPECT_LE(series, 5000) << spec.name;  // routes x methods x statuses; few ever occur
  }
}

TEST(MetricTable, BucketsResolveMilliseconds) {
  for (const MetricId id : {MetricId::kInterToken, MetricId::kStepDuration}) {
    const auto buckets = metric(id).buckets;
    EXPECT_GE(std::count_if(buckets.begin(), buckets.end(), [](double b) { return b < 0.005; }), 6);
  }
}

TEST(MetricTable, EveryEndHasItsOutcome) {
  std::set<std::string_view> reasons;
  for (int end = 0; end < kNumRequestEnds; ++end) {
    const auto reason = static_cast<RequestEnd>(end);
    EXPECT_TRUE(reasons.insert(to_string(reason)).second);
    EXPECT_FALSE(to_string(outcome_of(reason)).empty());
  }
  EXPECT_EQ(outcome_of(RequestEnd::kToolCalls), RequestOutcome::kFinished);
  EXPECT_EQ(outcome_of(RequestEnd::kClientGone), RequestOutcome::kAborted);
  EXPECT_EQ(outcome_of(RequestEnd::kTimeout), RequestOutcome::kFailed);
  EXPECT_EQ(outcome_of(RequestEnd::kInvalid), RequestOutcome::kRefused);
}

TEST(MetricTable, DocumentIsUpToDate) {
  const auto written = read_file(test::source_dir() / "docs/metrics.md");
  ASSERT_TRUE(written.has_value()) << written.error().to_string();
  EXPECT_TRUE(*written == metric_table_markdown())
      << "docs/metrics.md differs from the table; write it anew: pivot metrics > docs/metrics.md";
}

// ---- what a scrape sees ----

TEST(Metrics, EverySeriesIsThereFromTheStart) {
  const Metrics metrics;
  const std::string text = metrics.render();
  const auto values = samples(text);
  for (const MetricSpec& spec : metric_table()) {
    if (spec.all_series || spec.id == MetricId::kRequests) {
      EXPECT_NE(text.find("# TYPE " + std::string(spec.name) + " " + std::string(to_string(spec.type))),
                std::string::npos)
          << spec.name;
    }
  }
  EXPECT_EQ(values.at("pivot_cache_pages{pool=\"ratio4\",state=\"free\"}"), 0);
  EXPECT_EQ(values.at("pivot_requests_total{outcome=\"refused\",reason=\"queue_full\"}"), 0);
  EXPECT_FALSE(values.contains("pivot_requests_total{outcome=\"finished\",reason=\"queue_full\"}"));
  EXPECT_GT(values.at("pivot_process_resident_bytes"), 1e6);
  EXPECT_GT(values.at("pivot_process_open_files"), 2);
  EXPECT_GT(values.at("pivot_process_start_time_seconds"), 1.6e9);
}

TEST(Metrics, ScrapesOfTheSameStateAreTheSameText) {
  const Metrics metrics;
  const auto without_process = [](const std::string& text) {
    return std::regex_replace(text, std::regex("pivot_process[^\n]*"), "");
  };
  EXPECT_EQ(without_process(metrics.render()), without_process(metrics.render()));
}

TEST(Metrics, HistogramsAreCumulative) {
  Metrics metrics;
  const Histogram histogram = metrics.histogram(MetricId::kInterToken);
  for (const double value : {0.00005, 0.001, 0.0011, 0.3, 100.0}) histogram.observe(value);
  const auto values = samples(metrics.render());
  double last = 0;
  for (const double bound : metric(MetricId::kInterToken).buckets) {
    const double count = values.at(fmt::format("pivot_inter_token_seconds_bucket{{le=\"{:g}\"}}", bound));
    EXPECT_GE(count, last);
    last = count;
  }
  EXPECT_EQ(values.at("pivot_inter_token_seconds_bucket{le=\"0.001\"}"), 2);  // upper bounds are inclusive
  EXPECT_EQ(values.at("pivot_inter_token_seconds_bucket{le=\"+Inf\"}"), 5);
  EXPECT_EQ(values.at("pivot_inter_token_seconds_count"), 5);
  EXPECT_NEAR(values.at("pivot_inter_token_seconds_sum"), 100.30215, 1e-6);
}

TEST(Metrics, WhatTheTableDoesNotListIsOther) {
  Metrics metrics;
  metrics.counter(MetricId::kHttpRequests, {"/v1/../etc/passwd", "BREW", "418"}).add();
  metrics.counter(MetricId::kHttpRequests, {"/v2", "LINK", "799"}).add();
  EXPECT_EQ(samples(metrics.render())
                .at("pivot_http_requests_total{method=\"other\",route=\"other\",status=\"other\"}"),
            2);
}

TEST(Metrics, IdentityKeepsItsTexts) {
  Metrics metrics;
  metrics.set_info(MetricId::kKnobInfo, {"kv", "fp8", "fp8", "true"});
  metrics.set_info(MetricId::kKnobInfo, {"kv", "fp8", "fp8", "true"});
  metrics.set_info(MetricId::kCheckpointInfo, {"a \"b\"\\\n", "0123", "native", "cpu"});
  const std::string text = metrics.render();
  EXPECT_EQ(sum(samples(text), "pivot_knob_info{"), 1);
  EXPECT_NE(text.find(R"(model="a \"b\"\\\n")"), std::string::npos) << text;
}

TEST(Metrics, RefreshesBeforeEachScrape) {
  Metrics metrics;
  int calls = 0;
  const Gauge entries = metrics.gauge(MetricId::kPrefixEntries);
  metrics.on_collect([&] { entries.set(++calls); });
  EXPECT_EQ(samples(metrics.render()).at("pivot_prefix_cache_entries"), 1);
  EXPECT_EQ(samples(metrics.render()).at("pivot_prefix_cache_entries"), 2);
}

// ---- requests (public-faults.md B35) ----

TEST(RequestMetrics, EveryRequestEndsOnce) {
  Metrics metrics;
  {
    RequestMetrics finished(metrics, "chat_completions");
    finished.started(600, 0.25);
    for (int i = 0; i < 8; ++i) finished.token(0);
    finished.end(RequestEnd::kStop, 1.5, 0.5);
    finished.end(RequestEnd::kInternal);  // too late
    RequestMetrics aborted(metrics, "messages");
    aborted.started(600, 0);
    aborted.token(0);
    aborted.end(RequestEnd::kClientGone, 1, 0);
    RequestMetrics refused(metrics, "strange");
    refused.end(RequestEnd::kInvalid);
    RequestMetrics forgotten(metrics, "completions");
    const RequestMetrics moved = std::move(forgotten);
  }
  const auto values = samples(metrics.render());
  EXPECT_EQ(sum(values, "pivot_requests_received_total{"), 4);
  EXPECT_EQ(sum(values, "pivot_requests_total{"), 4);
  EXPECT_EQ(values.at("pivot_requests_in_flight"), 0);
  EXPECT_EQ(values.at("pivot_requests_total{outcome=\"finished\",reason=\"stop\"}"), 1);
  EXPECT_EQ(values.at("pivot_requests_total{outcome=\"aborted\",reason=\"client_gone\"}"), 1);
  EXPECT_EQ(values.at("pivot_requests_total{outcome=\"refused\",reason=\"invalid\"}"), 1);
  EXPECT_EQ(values.at("pivot_requests_total{outcome=\"failed\",reason=\"internal\"}"), 1);
  EXPECT_EQ(values.at("pivot_requests_received_total{endpoint=\"other\"}"), 1);
  for (const char* outcome : {"finished", "aborted", "failed", "refused"})
    EXPECT_EQ(values.at(fmt::format("pivot_request_duration_seconds_count{{outcome=\"{}\"}}", outcome)), 1);
  EXPECT_EQ(values.at("pivot_request_prompt_tokens_count"), 2);
  EXPECT_EQ(values.at("pivot_request_generated_tokens_sum"), 9);
  EXPECT_EQ(values.at("pivot_time_to_first_token_seconds_count"), 2);
  EXPECT_EQ(values.at("pivot_inter_token_seconds_count"), 7);
  EXPECT_EQ(values.at("pivot_request_prefill_seconds_sum"), 2.5);
}

TEST(RequestMetrics, ChoicesShareTheFirstToken) {
  Metrics metrics;
  RequestMetrics request(metrics, "completions");
  request.started(10, 0);
  for (int step = 0; step < 3; ++step)
    for (int choice = 0; choice < 2; ++choice) request.token(choice);
  request.end(RequestEnd::kLength, 0.1, 0.1);
  const auto values = samples(metrics.render());
  EXPECT_EQ(values.at("pivot_time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(values.at("pivot_inter_token_seconds_count"), 4);
  EXPECT_EQ(values.at("pivot_request_generated_tokens_sum"), 6);
  EXPECT_EQ(sum(values, "pivot_requests_total{"), 1);
}

TEST(RequestMetrics, AddUpInEveryScrape) {
  Metrics metrics;
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&metrics, t] {
      for (int i = 0; i < 300; ++i) {
        RequestMetrics request(metrics, "chat_completions");
        if (i % 3 == t) request.end(static_cast<RequestEnd>(i % kNumRequestEnds));
      }
    });
  }
  std::thread scraper([&] {
    while (!done) {
      const auto values = samples(metrics.render());
      EXPECT_EQ(sum(values, "pivot_requests_received_total{"),
                sum(values, "pivot_requests_total{") + values.at("pivot_requests_in_flight"));
    }
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  scraper.join();
  EXPECT_EQ(sum(samples(metrics.render()), "pivot_requests_total{"), 900);
}

// ---- the engine's figures ----

TEST(EngineMetrics, MirrorsFiguresWithoutEverFalling) {
  Metrics metrics;
  EngineCapacity capacity;
  capacity.max_sequences = 16;
  capacity.page_bytes = {4096, 1024};
  capacity.component_bytes[static_cast<std::size_t>(Component::kIndexKeys)] = 777;
  EngineMetrics engine(metrics, capacity);

  EngineStats stats;
  stats.prompt_tokens = 1000;
  stats.cached_tokens = 300;
  stats.disk.hit_tokens = 100;
  stats.preemptions = 3;
  stats.recomputed_preemptions = 1;
  stats.pages[0] = {100, 60, 30, 10};
  stats.prefix.queries = 10;
  stats.prefix.hits = 4;
  stats.waiting = 2;
  engine.update(stats);
  engine.update(stats);  // no figure counts twice
  auto values = samples(metrics.render());
  EXPECT_EQ(values.at("pivot_prompt_tokens_total{source=\"computed\"}"), 700);
  EXPECT_EQ(values.at("pivot_prompt_tokens_total{source=\"memory\"}"), 200);
  EXPECT_EQ(values.at("pivot_prompt_tokens_total{source=\"disk\"}"), 100);
  EXPECT_EQ(values.at("pivot_preemptions_total{state=\"kept\"}"), 2);
  EXPECT_EQ(values.at("pivot_cache_pages{pool=\"ratio4\",state=\"used\"}"), 60);
  EXPECT_EQ(values.at("pivot_cache_pages{pool=\"ratio4\",state=\"evictable\"}"), 30);
  EXPECT_EQ(values.at("pivot_cache_pages{pool=\"ratio4\",state=\"free\"}"), 10);
  EXPECT_EQ(values.at("pivot_cache_page_bytes{pool=\"ratio128\"}"), 1024);
  EXPECT_EQ(values.at("pivot_cache_component_bytes{component=\"index_keys\"}"), 777);
  EXPECT_EQ(values.at("pivot_prefix_cache_queries_total{result=\"miss\"}"), 6);
  EXPECT_EQ(values.at("pivot_requests_waiting"), 2);
  EXPECT_EQ(values.at("pivot_sequences_limit"), 16);

  stats.prompt_tokens = 1500;
  stats.waiting = 0;
  engine.update(stats);
  values = samples(metrics.render());
  EXPECT_EQ(sum(values, "pivot_prompt_tokens_total{"), 1500);
  EXPECT_EQ(values.at("pivot_requests_waiting"), 0);
}

TEST(EngineMetrics, StepsByWhatTheyHold) {
  Metrics metrics;
  EngineMetrics engine(metrics, {});
  StepRecord record;
  record.forward_seconds = 0.01;
  record.sequences = 3;
  record.decode_tokens = 3;
  engine.step(record);
  record.prefill_tokens = 200;
  engine.step(record);
  record.decode_tokens = 0;
  engine.step(record);
  const auto values = samples(metrics.render());
  for (const char* kind : {"decode", "mixed", "prefill"})
    EXPECT_EQ(values.at(fmt::format("pivot_steps_total{{kind=\"{}\"}}", kind)), 1) << kind;
  EXPECT_EQ(values.at("pivot_step_sequences_sum"), 9);
  EXPECT_EQ(values.at("pivot_step_tokens_sum"), 3 + 203 + 200);
}

TEST(EngineMetrics, Grammars) {
  Metrics metrics;
  EngineMetrics engine(metrics, {});
  GrammarStats stats;
  stats.compiled = 3;
  stats.cached = 5;
  stats.masks = 40;
  stats.mask_seconds = 0.5;
  engine.update(stats);
  const auto values = samples(metrics.render());
  EXPECT_EQ(values.at("pivot_grammars_total{result=\"cached\"}"), 5);
  EXPECT_EQ(values.at("pivot_grammar_mask_seconds_total"), 0.5);
}

}  // namespace
}  // namespace pivot
