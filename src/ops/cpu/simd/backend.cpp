#include "ops/cpu/simd/backend.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/threads.h"
#include "ops/cpu/reference/linear.h"
#include "ops/cpu/reference/support.h"
#include "ops/cpu/simd/context.h"
#include "ops/cpu/simd/memory.h"
#include "ops/cpu/simd/placement.h"

namespace pivot {
namespace {

constexpr std::align_val_t kAlignment{64};

std::int64_t memory_bytes(int name) {
  return static_cast<std::int64_t>(sysconf(name)) * static_cast<std::int64_t>(sysconf(_SC_PAGESIZE));
}

// What the kernels need beyond the oracle.
Result<> check_shapes(const ModelConfig& c) {
  const auto refuse = [](const std::string& what) {
    return fail(ErrorCode::kUnsupported,
                "the fast CPU back-end cannot run this model: {}; use the reference back-end", what);
  };
  if (c.head_dim % 16 != 0)
    return refuse(fmt::format("head_dim is {}, it must be a multiple of 16", c.head_dim));
  if (c.hc_mult > 4) return refuse(fmt::format("hc_mult is {}, at most 4 are supported", c.hc_mult));
  if (c.qk_rope_head_dim > 2 * simd::kMaxPairs)
    return refuse(fmt::format("qk_rope_head_dim is {}, at most {} are supported", c.qk_rope_head_dim,
                              2 * simd::kMaxPairs));
  if (c.num_attention_heads > simd::kMaxHeads)
    return refuse(fmt::format("num_attention_heads is {}, at most {} are supported", c.num_attention_heads,
                              simd::kMaxHeads));
  const bool indexed =
      std::find(c.compress_ratios.begin(), c.compress_ratios.end(), 4) != c.compress_ratios.end();
  if (indexed && c.index_head_dim < 16)
    return refuse(fmt::format("index_head_dim is {}, it must be at least 16", c.index_head_dim));
  return {};
}

// What the process runs on, said once.
void report_choice(int num_threads, simd::Isa isa) {
  static std::once_flag said;
  std::call_once(said, [&] {
    for (const std::string& line :
         simd::describe_choice(isa, simd::supported_isas(), num_threads, usable_cores()))
      spdlog::log(line.starts_with("CPU kernels") ? spdlog::level::debug : spdlog::level::warn, "{}", line);
  });
}

class SimdBackend final : public Backend {
 public:
  SimdBackend(int num_threads, const simd::Kernels& kernels, std::string_view instructions,
              std::optional<Error> problem)
      : pool_(num_threads),
        instructions_(instructions),
        problem_(std::move(problem)),
        placement_(simd::place_threads(
            simd::describe_machine("/sys/devices/system/node", simd::usable_cpus()), pool_.size())),
        context_{kernels, pool_, scratch_, {}} {}

  std::string_view name() const override { return "cpu"; }
  DeviceInfo device() const override {
    return {fmt::format("cpu ({}, {} thread{})", instructions_, pool_.size(), pool_.size() == 1 ? "" : "s"),
            simd::usable_memory_bytes()};
  }
  int activation_bytes() const override { return 4; }
  Result<> supports(const ModelWeights& weights, const Knobs& knobs) const override {
    if (problem_) return fail(*problem_);
    PIVOT_TRY_VOID(reference::check_support(weights, knobs));
    PIVOT_TRY_VOID(check_shapes(weights.config));
    return simd::check_weights_fit(simd::weight_bytes(weights), simd::usable_memory_bytes());
  }

  Result<std::byte*> allocate(std::int64_t bytes, std::string_view purpose) override {
    PIVOT_CHECK(bytes >= 0, "{} bytes for {}", bytes, purpose);
    void* memory =
        ::operator new(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)), kAlignment, std::nothrow);
    if (memory == nullptr)
      return fail(ErrorCode::kOutOfMemory,
                  "{} needs {} bytes, {} are free; reduce the context or the number of sequences", purpose,
                  bytes, memory_bytes(_SC_AVPHYS_PAGES));
    return static_cast<std::byte*>(memory);
  }
  void release(std::byte* memory) override { ::operator delete(memory, kAlignment); }
  void fill(std::byte* memory, int value, std::int64_t bytes) override {
    std::fill_n(memory, bytes, static_cast<std::byte>(value));
  }
  // No bytes may come from and go to no address, which memcpy does not allow.
  void upload(void* device, const void* host, std::int64_t bytes) override {
    std::copy_n(static_cast<const std::byte*>(host), bytes, static_cast<std::byte*>(device));
  }
  void download(void* host, const void* device, std::int64_t bytes) override {
    std::copy_n(static_cast<const std::byte*>(device), bytes, static_cast<std::byte*>(host));
  }
  Result<> synchronize() override { return {}; }
  Result<std::shared_ptr<const ModelWeights>> place(std::shared_ptr<const ModelWeights> weights) override {
    return weights;
  }

  void embed(const StepBatch& batch, const EmbedParams& p) override {
    const std::int64_t width = p.embed.cols;
    for (std::int64_t t = 0; t < batch.num_tokens; ++t) {
      float* h = simd::floats(p.h) + t * p.num_streams * width;
      reference::dequantize_row(p.embed, batch.token_ids[t], h);
      for (std::int32_t s = 1; s < p.num_streams; ++s) std::copy_n(h, width, h + s * width);
    }
  }
  void hc_seam(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
               const HcSeamParams& p) override {
    simd::hc_seam(fresh(), layer, knobs, batch, p);
  }
  void hc_head(const ModelConfig& config, const Knobs& knobs, const StepBatch& batch,
               const HcHeadParams& p) override {
    simd::hc_head(fresh(), config, knobs, batch, p);
  }
  void latent(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
              const LatentParams& p) override {
    simd::latent(fresh(), layer, knobs, batch, p);
  }
  void query(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
             const QueryParams& p) override {
    simd::query(fresh(), layer, knobs, batch, p);
  }
  void index_select(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                    const IndexSelectParams& p) override {
    simd::index_select(fresh(), layer, knobs, batch, p);
  }
  void attention(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                 const AttentionParams& p) override {
    simd::attention(fresh(), layer, knobs, batch, p);
  }
  void attention_out(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
                     const AttentionOutParams& p) override {
    simd::attention_out(fresh(), layer, knobs, batch, p);
  }
  void route(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
             const RouteParams& p) override {
    simd::route(fresh(), layer, knobs, batch, p);
  }
  void moe(const LayerContext& layer, const Knobs& knobs, const StepBatch& batch,
           const MoeParams& p) override {
    simd::moe(fresh(), layer, knobs, batch, p);
  }
  void logits(const Knobs&, const LogitsParams& p) override { simd::logits(fresh(), p); }

 private:
  // The context with all temporary memory free again. The thread that runs steps is piece 0 of the pool; all
  // are placed when the first step comes.
  simd::Context& fresh() {
    if (!placed_) {
      placed_ = true;
      if (!placement_.cpu_of_piece.empty()) place_pool();
    }
    scratch_.reset();
    return context_;
  }

  void place_pool() {
    pool_.run([&](int piece, int) {
      // A thread that cannot be placed works where it is.
      const Result<> placed = simd::apply_to_this_thread(placement_, piece);
      if (!placed && piece == 0) spdlog::warn("{}; threads run unplaced", placed.error().to_string());
    });
  }

  ThreadPool pool_;
  std::string instructions_;
  std::optional<Error> problem_;
  simd::Placement placement_;
  bool placed_ = false;
  simd::Scratch scratch_;
  simd::Context context_;
};

}  // namespace

std::unique_ptr<Backend> make_simd_backend(int num_threads) {
  Result<simd::Isa> isa = simd::choose_isa();
  if (!isa)
    return std::make_unique<SimdBackend>(num_threads, simd::kernels(simd::Isa::kPortable),
                                         simd::to_string(simd::Isa::kPortable), std::move(isa).error());
  report_choice(num_threads, *isa);
  return make_simd_backend(num_threads, *isa);
}

std::unique_ptr<Backend> make_simd_backend(int num_threads, simd::Isa isa) {
  return make_simd_backend(num_threads, simd::kernels(isa), simd::to_string(isa));
}

std::unique_ptr<Backend> make_simd_backend(int num_threads, const simd::Kernels& kernels,
                                           std::string_view instructions) {
  return std::make_unique<SimdBackend>(num_threads, kernels, instructions, std::nullopt);
}

}  // namespace pivot
