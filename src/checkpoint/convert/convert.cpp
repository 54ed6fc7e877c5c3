#include "checkpoint/convert/convert.h"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "base/file.h"
#include "base/read_ahead.h"
#include "checkpoint/convert/encode.h"
#include "checkpoint/convert/journal.h"
#include "checkpoint/convert/shard_plan.h"
#include "checkpoint/inspect/inspection.h"
#include "checkpoint/quantization.h"

namespace pivot {
namespace fs = std::filesystem;

namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr int kReadDepth = 6;  // reads ahead of each shard's writer, up to 16 MiB each

// Room beside the tensors: headers, index, texts, tokenizer and journal take under one percent and a few
// megabytes.
std::uint64_t with_slack(std::uint64_t data_bytes) {
  return data_bytes + data_bytes / 100 + (std::uint64_t{4} << 20);
}

Result<std::uint64_t> free_bytes(const fs::path& folder) {
  fs::path at = folder;
  std::error_code error;
  while (!at.empty() && !fs::exists(at, error) && at != at.parent_path()) at = at.parent_path();
  if (at.empty()) at = ".";
  struct statvfs status {};
  if (::statvfs(at.c_str(), &status) != 0) return fail(errno_error(errno, "ask for the free space of", at));
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

// The output must not be the source, nor lie in it, nor hold it.
Result<> check_places(const fs::path& source, const fs::path& output) {
  std::error_code error;
  const fs::path from = fs::weakly_canonical(source, error);
  if (error) return fail(errno_error(error.value(), "resolve", source));
  const fs::path to = fs::weakly_canonical(output, error);
  if (error) return fail(errno_error(error.value(), "resolve", output));
  const auto contains = [](const fs::path& outer, const fs::path& inner) {
    return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
  };
  if (contains(from, to) || contains(to, from))
    return fail(
        ErrorCode::kInvalidArgument,
        "the output {} and the source {} overlap; the source is never touched, so choose a folder beside it",
        to.string(), from.string());
  return {};
}

struct Prepared {
  ModelConfig config;
  ModelLayout layout;
  OutputPlan plan;
  std::string identity;
};

Result<Prepared> prepare(const Checkpoint& source, const ConvertOptions& options) {
  Prepared prepared;
  PIVOT_TRY(prepared.config, parse_model_config(source.config_text().value_or(""), "config.json"));
  PIVOT_TRY(const QuantizationFacts quantization,
            parse_quantization(source.config_text().value_or(""), source.hf_quant_text().value_or(""),
                               source.folder().string()));
  PIVOT_TRY(prepared.layout, resolve_layout(prepared.config, quantization, source.table()));
  PIVOT_TRY(prepared.plan, plan_output(source, prepared.layout, options));
  // What must be equal for a resumed run to go on where the first one stopped.
  prepared.identity = fmt::format(
      "{} {} bytes, experts {}, draft {}, rounding {}, scales {}", header_fingerprint(source.table()),
      source.file_bytes(), to_string(options.experts), options.draft_experts, options.allow_rounding,
      options.input_scales != nullptr ? header_fingerprint(options.input_scales->table()) : "none");
  return prepared;
}

// Texts and whatever else lies beside the weights: tokenizer, licence, encoding scripts.
bool is_side_file(const fs::path& name) {
  const std::string text = name.string();
  return text != "config.json" && text != "hf_quant_config.json" && text != kIndexName &&
         !text.starts_with(".") && name.extension() != ".safetensors" &&
         text.find(".safetensors") == std::string::npos && !text.ends_with(".incomplete") &&
         !text.ends_with(".tmp");
}

Result<> copy_side_files(const fs::path& from, const fs::path& to, int depth) {
  constexpr int kDeepest = 8;  // a symlink loop ends here
  std::error_code error;
  for (fs::directory_iterator at(from, error), end; !error && at != end; at.increment(error)) {
    const fs::path name = at->path().filename();
    std::error_code ignored;
    if (fs::is_directory(at->path(), ignored)) {
      if (name.string().starts_with(".") || depth >= kDeepest) continue;
      fs::create_directories(to / name, ignored);
      PIVOT_TRY_VOID(copy_side_files(at->path(), to / name, depth + 1));
    } else if (fs::is_regular_file(at->path(), ignored) && is_side_file(name)) {
      PIVOT_TRY(const std::string contents, read_file(at->path()));
      PIVOT_TRY_VOID(write_file(to / name, contents));
    }
  }
  return {};
}

class Converter {
 public:
  Converter(const Checkpoint& source, const fs::path& output, const ConvertOptions& options,
            const Prepared& prepared, Journal& journal)
      : source_(source),
        output_(output),
        options_(options),
        prepared_(prepared),
        journal_(journal),
        encoder_(source, prepared.layout, options) {
    for (const ShardInfo& shard : source.table().shards()) files_.push_back(source.folder() / shard.file);
  }

  Result<ConvertReport> run();

 private:
  Result<> write_shard(const ShardPlan& shard);
  Result<> write_shards();
  bool stopped() const { return options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed); }
  void advance(std::uint64_t bytes);

  const Checkpoint& source_;
  const fs::path& output_;
  const ConvertOptions& options_;
  const Prepared& prepared_;
  Journal& journal_;
  Encoder encoder_;
  std::vector<fs::path> files_;  // of the source, by shard
  ConvertReport report_;
  std::vector<const ShardPlan*> pending_;
  std::uint64_t pending_bytes_ = 0;
  std::mutex mutex_;  // of everything below and of journal_ and report_
  std::size_t next_ = 0;
  std::optional<Error> error_;
};

void Converter::advance(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  report_.bytes_written += bytes;
  if (options_.progress) options_.progress(report_.bytes_written, pending_bytes_);
}

Result<> Converter::write_shard(const ShardPlan& shard) {
  std::vector<TensorDeclaration> declarations;
  declarations.reserve(shard.tensors.size());
  for (const OutputTensor& tensor : shard.tensors) declarations.push_back(tensor.declaration);
  const fs::path path = output_ / shard.file;
  PIVOT_TRY(SafetensorsWriter writer,
            SafetensorsWriter::create(path, std::move(declarations), shard.metadata));
  std::vector<ReadJob> jobs;
  std::vector<const OutputTensor*> of_job;
  for (const OutputTensor& tensor : shard.tensors)
    for (ReadJob& job : encoder_.jobs(tensor)) {
      jobs.push_back(std::move(job));
      of_job.push_back(&tensor);
    }
  PIVOT_TRY(const auto reader, ReadAhead::start(files_, std::move(jobs), kReadDepth));
  JointCodes kept;
  for (const OutputTensor* tensor : of_job) {
    if (stopped()) return fail(ErrorCode::kCancelled, "stopped; run the same command again to resume");
    PIVOT_TRY(const auto loaded, reader->next());
    PIVOT_CHECK(loaded.has_value(), "{} ran out of reads", shard.file);
    const auto sink = [&](std::span<const std::byte> bytes) -> Result<> {
      PIVOT_TRY_VOID(writer.append(tensor->declaration.name, bytes));
      advance(bytes.size());
      return {};
    };
    PIVOT_TRY_VOID(encoder_.encode(*tensor, *loaded, kept, sink));
  }
  PIVOT_TRY_VOID(writer.finish());
  std::error_code error;
  const std::uint64_t file_bytes = fs::file_size(path, error);
  if (error) return fail(errno_error(error.value(), "stat", path));
  const std::lock_guard lock(mutex_);
  return journal_.add(shard.file, file_bytes);
}

Result<> Converter::write_shards() {
  const auto work = [&] {
    for (;;) {
      const ShardPlan* shard = nullptr;
      {
        const std::lock_guard lock(mutex_);
        if (error_ || next_ == pending_.size()) return;
        shard = pending_[next_++];
      }
      auto result = write_shard(*shard);
      if (result) continue;
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::move(result).error();
    }
  };
  std::vector<std::thread> others;
  for (int t = 1; t < options_.threads; ++t) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
  if (error_) return fail(std::move(*error_));
  return {};
}

Result<ConvertReport> Converter::run() {
  const auto start = std::chrono::steady_clock::now();
  report_.matrices = prepared_.plan.matrices;
  report_.copied_tensors = prepared_.plan.copied;
  report_.shards = static_cast<int>(prepared_.plan.shards.size());
  report_.calibrated_input_scales = options_.input_scales != nullptr;
  for (const ShardPlan& shard : prepared_.plan.shards) {
    if (journal_.finished(shard.file)) {
      ++report_.shards_resumed;
      continue;
    }
    pending_.push_back(&shard);
    pending_bytes_ += shard.data_bytes;
  }
  PIVOT_TRY_VOID(write_shards());
  PIVOT_TRY_VOID(copy_side_files(source_.folder(), output_, 0));
  PIVOT_TRY(const OutputTexts texts, output_texts(source_, prepared_.config.num_hidden_layers, options_));
  if (!texts.hf_quant.empty()) PIVOT_TRY_VOID(write_file(output_ / "hf_quant_config.json", texts.hf_quant));
  PIVOT_TRY_VOID(write_file(output_ / "config.json", texts.config));
  // Without its index a folder of several shards opens nowhere: it comes last.
  const bool single =
      prepared_.plan.shards.size() == 1 && prepared_.plan.shards.front().file == "model.safetensors";
  if (!single) PIVOT_TRY_VOID(write_file(output_ / kIndexName, output_index(prepared_.plan)));
  PIVOT_TRY_VOID(journal_.close());
  report_.rounded_values = encoder_.rounded_values();
  report_.rounded_example = encoder_.rounded_example();
  report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report_;
}

}  // namespace

const char* to_string(ExpertTarget target) {
  switch (target) {
    case ExpertTarget::kNative:
      return "native";
    case ExpertTarget::kNvfp4:
      return "nvfp4";
    case ExpertTarget::kFp8:
      return "fp8";
    case ExpertTarget::kBf16:
      return "bf16";
  }
  return "";
}

ExpertFormat format_of(ExpertTarget target) {
  switch (target) {
    case ExpertTarget::kNative:
      return ExpertFormat::kMxfp4;
    case ExpertTarget::kNvfp4:
      return ExpertFormat::kNvfp4ModelOpt;
    case ExpertTarget::kFp8:
      return ExpertFormat::kFp8E8m0;
    case ExpertTarget::kBf16:
      return ExpertFormat::kBf16;
  }
  return ExpertFormat::kUnknown;
}

Result<ConvertPlan> plan_conversion(const Checkpoint& source, const fs::path& output,
                                    const ConvertOptions& options) {
  PIVOT_TRY_VOID(check_places(source.folder(), output));
  PIVOT_TRY(const Prepared prepared, prepare(source, options));
  ConvertPlan plan;
  plan.output_bytes = prepared.plan.data_bytes;
  PIVOT_TRY(plan.free_bytes, free_bytes(output));
  for (const ShardPlan& shard : prepared.plan.shards) {
    std::error_code error;
    if (!fs::exists(output / shard.file, error)) plan.remaining_bytes += shard.data_bytes;
  }
  return plan;
}

Result<ConvertReport> convert_checkpoint(const Checkpoint& source, const fs::path& output,
                                         const ConvertOptions& options) {
  PIVOT_TRY_VOID(check_places(source.folder(), output));
  PIVOT_TRY(const Prepared prepared, prepare(source, options));
  std::error_code error;
  std::uint64_t wanted = 0;
  for (const ShardPlan& shard : prepared.plan.shards)
    if (!fs::exists(output / shard.file, error)) wanted += shard.data_bytes;
  wanted = with_slack(wanted);
  PIVOT_TRY(const std::uint64_t available, free_bytes(output));
  if (available < wanted)
    return fail(
        ErrorCode::kCannotCreate,
        "{} needs {} more bytes and its disk has {} free; make room for {} bytes, or choose another disk",
        output.string(), wanted, available, wanted - available);
  PIVOT_TRY(Journal journal, Journal::open(output, prepared.identity));
  return Converter(source, output, options, prepared, journal).run();
}

}  // namespace pivot
