// pivot serve: one model behind HTTP, until SIGTERM.
#include <csignal>
#include <ctime>

#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "command.h"
#include "configuration.h"
#include "engine/devices.h"
#include "ops/knobs.h"
#include "pivot_version.h"
#include "sampling_options.h"
#include "serve_options.h"
#include "server/handlers/request_log.h"
#include "server/handlers/service.h"
#include "server/service_manager.h"
#include "terminal.h"
#include "version.h"

namespace pivot::cli {
namespace {

constexpr std::chrono::seconds kLoadExtension{120};

// SIGTERM, SIGINT and SIGHUP are taken by sigtimedwait on the main thread; threads made from here on inherit
// the mask.
sigset_t block_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return signals;
}

// The signal that came within `wait`, or 0.
int wait_for_signal(const sigset_t& signals, std::chrono::milliseconds wait) {
  timespec time{};
  time.tv_sec = wait.count() / 1000;
  time.tv_nsec = (wait.count() % 1000) * 1'000'000;
  const int signal = sigtimedwait(&signals, nullptr, &time);
  return signal > 0 ? signal : 0;
}

std::string info_json(const std::vector<OptionValue>& values) {
  nlohmann::ordered_json options = nlohmann::ordered_json::array();
  for (const OptionValue& value : values) {
    options.push_back({{"name", value.name}, {"value", value.value}, {"origin", value.origin}});
  }
  return nlohmann::ordered_json{{"options", std::move(options)}}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void print_configuration(const std::vector<OptionValue>& values) {
  server::LogLine("configuration").add("options", static_cast<std::int64_t>(values.size())).info();
  for (const OptionValue& value : values) {
    server::LogLine("option")
        .add("name", value.name)
        .add("value", value.value)
        .add("origin", value.origin)
        .info();
  }
}

// The same for a person: what differs from the defaults, and where to go.
void print_banner(const ServeOptions& options, const OpenModel& model, server::Instance& instance,
                  const std::vector<OptionValue>& values) {
  const Style style = style_for(STDERR_FILENO);
  const EngineCapacity& capacity = instance.engine().capacity();
  std::fprintf(stderr, "\n  %spivot %s%s serves %s%s%s on %s\n", style.bold.data(), kVersion,
               style.reset.data(), style.bold.data(), options.model.model.c_str(), style.reset.data(),
               model.device.c_str());
  std::fprintf(stderr, "  %d answers at a time, %s tokens each; state %s, knobs %s\n", capacity.max_sequences,
               format_count(capacity.max_context).c_str(), format_bytes(capacity.state_bytes).c_str(),
               describe(model.knobs).c_str());
  for (const OptionValue& value : values) {
    if (value.origin == "default") continue;
    std::fprintf(stderr, "  %s%-26s %s  (%s)%s\n", style.dim.data(), value.name.c_str(), value.value.c_str(),
                 value.origin.c_str(), style.reset.data());
  }
  std::fprintf(stderr, "\n");
  for (const std::string& address : instance.http().addresses()) {
    std::fprintf(stderr, "  %s%s%s\n", style.green.data(), address.c_str(), style.reset.data());
  }
  std::fprintf(stderr, "  /v1/chat/completions  /v1/completions  /v1/responses  /v1/messages  /metrics\n");
  std::fprintf(stderr, "  Ctrl-C finishes what runs; a second one ends at once.\n\n");
}

// Feeds the watchdog while the engine's loop is alive, and says how it goes.
class Watch {
 public:
  Watch(const server::ServiceManager& manager, const Engine& engine) : manager_(manager), engine_(engine) {}

  void look() {
    if (!manager_.is_present()) return;
    const std::uint64_t beat = engine_.heartbeat();
    if (beat != last_beat_) manager_.watchdog();
    last_beat_ = beat;
    const EngineStats stats = engine_.stats();
    std::string status =
        fmt::format("{} running, {} waiting, {} finished", stats.running, stats.waiting, stats.finished);
    if (status != last_status_) manager_.status(status);
    last_status_ = std::move(status);
  }
  // Often enough for the watchdog: a third of its interval, and the engine's beat.
  std::chrono::milliseconds interval() const {
    const auto third =
        std::chrono::duration_cast<std::chrono::milliseconds>(manager_.watchdog_interval()) / 3;
    return third.count() > 0
               ? std::clamp(third, std::chrono::milliseconds(100), std::chrono::milliseconds(1000))
               : std::chrono::milliseconds(1000);
  }

 private:
  const server::ServiceManager& manager_;
  const Engine& engine_;
  std::uint64_t last_beat_ = ~std::uint64_t{0};
  std::string last_status_;
};

void drain(server::Instance& instance, const sigset_t& signals, double seconds,
           const server::ServiceManager& manager, Watch& watch) {
  using Clock = std::chrono::steady_clock;
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  manager.stopping();
  manager.extend_timeout(std::chrono::microseconds(static_cast<std::int64_t>((seconds + 10) * 1e6)));
  server::LogLine("draining").add_seconds("seconds", seconds).info();
  instance.begin_drain();
  while (!instance.drain(std::chrono::milliseconds(100))) {
    watch.look();
    if (Clock::now() >= deadline) {
      server::LogLine("drain_time_is_up").warn();
      return;
    }
    if (wait_for_signal(signals, std::chrono::milliseconds(0)) != 0) {
      server::LogLine("second_signal").warn();
      return;
    }
  }
}

Result<int> run(CLI::App& app, ServeOptions& options) {
  std::vector<std::string> from_file;
  if (!options.config.empty()) {
    PIVOT_TRY(from_file, apply_config_file(app, options.config));
  }
  if (options.model.model.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "a MODEL is wanted: `pivot serve MODEL`, or `model` in --config");
  }
  const bool on_terminal = is_terminal(STDERR_FILENO);
  const bool text = options.log_format == "text" || (options.log_format == "auto" && on_terminal);
  // A server tells more than other commands do, where nobody says how much.
  const CLI::Option* level = app.get_parent()->get_option("--log-level");
  const std::string log_level = level->count() > 0 ? level->as<std::string>() : "info";
  PIVOT_TRY_VOID(
      server::init_server_log(text ? server::LogFormat::kText : server::LogFormat::kJson, log_level));
  auto values = effective_options(app, from_file, options.config, {"api-key"});
  for (OptionValue& value : values)
    if (value.name == "log-level") value.value = log_level;
  PIVOT_TRY(server::InstanceOptions instance_config, instance_options(options));

  const sigset_t signals = block_signals();
  const auto manager = server::ServiceManager::from_environment();
  manager.status("loading " + options.model.model);
  manager.extend_timeout(kLoadExtension);
  PIVOT_TRY(OpenModel model, open_model(options.model, /*wants_tokenizer=*/true));

  server::ServiceOptions& service = instance_config.service;
  service.created = std::time(nullptr);
  service.fingerprint = fmt::format("fp_{:016x}", model.weights->fingerprint);
  service.version_json = version_json();
  service.info_json = info_json(values);
  const std::vector<TokenId> stop_tokens = model.stop_tokens();
  service.stop_tokens = stop_tokens;
  PIVOT_TRY(service.encoding, resolve_encoding(options.encoding, model.folder));
  PIVOT_TRY(service.default_sampling, generation_defaults(model.folder));
  ServeRecall serve_recall(options.recall);
  PIVOT_TRY(model.backend, serve_recall.watch(model.backend, model.weights));
  instance_config.engine.weights = model.weights;
  instance_config.engine.backend = model.backend;
  instance_config.engine.knobs = model.knobs;
  instance_config.tokenizer = std::move(model.tokenizer);
  instance_config.identity = {kVersion, kCommit, kBuildType, kBackends, kArchs, {}, model.device};
  PIVOT_TRY(const auto instance, server::Instance::start(std::move(instance_config)));

  if (text && on_terminal) {
    print_banner(options, model, *instance, values);
  } else {
    print_configuration(values);
  }
  for (const std::string& address : instance->http().addresses()) {
    server::LogLine("listening")
        .add("address", address)
        .add_seconds("load_seconds", model.load_seconds)
        .info();
  }
  PIVOT_TRY_VOID(serve_recall.start(*instance, options.model.model, stop_tokens));
  manager.ready();
  Watch watch(manager, instance->engine());
  while (wait_for_signal(signals, watch.interval()) == 0) watch.look();
  serve_recall.stop();
  drain(*instance, signals, options.drain_seconds, manager, watch);
  instance->stop();
  server::LogLine("stopped").info();
  return 0;
}

}  // namespace

Run add_serve(CLI::App& app) {
  auto options = std::make_shared<ServeOptions>();
  add_serve_options(app, *options);
  return [options, &app] { return run(app, *options); };
}

}  // namespace pivot::cli
