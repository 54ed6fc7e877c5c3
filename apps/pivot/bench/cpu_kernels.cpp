#include "bench/cpu_kernels.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <random>

#include "base/check.h"
#include "base/threads.h"
#include "bench/operators.h"
#include "checkpoint/flash_config.h"
#include "checkpoint/synthesis.h"
#include "checkpoint/weight_shapes.h"
#include "engine/sampler.h"
#include "ops/cpu/simd/isa.h"
#include "ops/cpu/simd/topk.h"

namespace pivot::cli {
namespace {

constexpr std::string_view kFma = "fp32 fma", kInt8 = "int8 dot";
constexpr std::int64_t kShortContext = 1024;  // where the caches do not matter

// FP4 weights meet an FP8 input written as two or three signed digits (ops/cpu/simd/linear_digits_body.h): at
// least two byte products for each product of the model.
constexpr double kDigits = 2;

// A kernel that is an operator of the back-end.
struct Recipe {
  CpuKernel kernel;
  std::string_view op;  // of OperatorBench
  int ratio;            // of the model's layers
  unsigned part;        // the part that streams; 0: none does
  MatrixFormat experts = MatrixFormat::kFP4;
  std::string_view knob = {};  // NAME=VALUE beside the user's
  bool prompts = true;         // a prompt's step has it too
};

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> list = {
      {{"seam", "hyper-connections: hc_post, fn (fp32 weights), hc_pre, norm", kFma},
       "hc_seam",
       0,
       kPartHyperConnection},
      {{"latent-r4", "wq_a, wkv, both compressors and weights_proj, norms, RoPE, packing; ratio 4", kFma},
       "latent (ratio 4)",
       4,
       kPartLatent},
      {{"latent-r128", "wq_a, wkv, the compressor, norms, RoPE, packing; ratio 128", kFma},
       "latent (ratio 128)",
       128,
       kPartLatent},
      {{"query", "wq_b and the indexer's, head norms, RoPE, Hadamard, FP4 rounding", kFma},
       "query (ratio 4)",
       4,
       kPartQuery},
      {{"index-fp4", "index scores over packed FP4 keys, and the top 512 of them", kInt8},
       "index_select",
       4,
       0,
       MatrixFormat::kFP4,
       "index_keys=fp4"},
      {{"index-fp8", "the same over FP8 keys", kFma},
       "index_select",
       4,
       0,
       MatrixFormat::kFP4,
       "index_keys=fp8"},
      {{"index-bf16", "the same over BF16 keys", kFma},
       "index_select",
       4,
       0,
       MatrixFormat::kFP4,
       "index_keys=bf16"},
      {{"attention-r4", "64 heads over the window and 512 chosen rows of packed KV", kFma},
       "attention (ratio 4)",
       4,
       0},
      {{"attention-r128", "64 heads over the window and every 128th row of packed KV", kFma},
       "attention (ratio 128)",
       128,
       0},
      {{"dense-fp8", "wo_a and wo_b: FP8 weights with 128x128 scales", kFma},
       "attention_out",
       0,
       kPartOutput},
      {{"router", "gate (BF16) and the choice of 6 of 256 experts", kFma}, "route", 0, kPartRouter},
      {{"experts-fp4", "6 routed experts and a 7th for all tokens, FP4", kInt8, kDigits},
       "moe",
       0,
       kPartExperts},
      {{"experts-nvfp4", "the same, NVFP4", kInt8, kDigits}, "moe", 0, kPartExperts, MatrixFormat::kNVFP4},
      {{"head-bf16", "the LM head", kFma}, "logits", 0, 0, MatrixFormat::kFP4, {}, false},
  };
  return list;
}

const Recipe* recipe_of(std::string_view name) {
  for (const Recipe& recipe : recipes())
    if (recipe.kernel.name == name) return &recipe;
  return nullptr;
}

// ---- kernels of rows: what operators do between their products ----

// Rows lie one after the other in `memory`; each call takes one, and calls go round the threads.
struct RowKernel {
  CpuKernel kernel;
  std::int64_t row_floats;
  double bytes;  // moved by a call
  std::function<void(const simd::Kernels&, float* row)> call;
};

constexpr std::int64_t kVocabulary = 129280, kEntries = 16384, kTopk = 512, kHeads = 64, kHeadDim = 512,
                       kRope = 64, kWidth = 4096, kPooled = 128;

std::vector<RowKernel> row_kernels() {
  const auto sample_with = [](float temperature, float top_p) {
    return [=](const simd::Kernels&, float* row) {
      SamplingParams params;
      params.temperature = temperature;
      params.top_p = top_p;
      (void)sample({row, static_cast<std::size_t>(kVocabulary)}, params, std::uint64_t{0});
    };
  };
  return {
      {{"rms-norm", "a row of 4096", kFma},
       kWidth,
       8.0 * kWidth,
       [](const simd::Kernels& kernels, float* row) {
         const float mean = kernels.sum_squares(row, kWidth, false) / static_cast<float>(kWidth);
         kernels.scale_row(row, 1.0f / (mean + 1.0f), nullptr, kWidth, true, row);
       }},
      {{"rope", "the last 64 dims of 64 heads of 512", kFma},
       kHeads * kHeadDim,
       8.0 * kHeads * kRope,
       [](const simd::Kernels& kernels, float* row) {
         const float cos[kRope / 2] = {1.0f}, sin[kRope / 2] = {};
         for (std::int64_t h = 0; h < kHeads; ++h)
           kernels.rotate(row + (h + 1) * kHeadDim - kRope, cos, sin, kRope / 2, true);
       }},
      {{"compressor", "softmax pool of 128 rows of 512: one entry of ratio 128", kFma},
       2 * kPooled * kHeadDim,
       8.0 * kPooled * kHeadDim,
       [](const simd::Kernels& kernels, float* row) {
         const float *k[kPooled], *s[kPooled];
         for (std::int64_t i = 0; i < kPooled; ++i) {
           k[i] = row + 2 * i * kHeadDim;
           s[i] = k[i] + kHeadDim;
         }
         float out[kHeadDim];
         kernels.softmax_pool(k, s, kPooled, kHeadDim, out);
         row[0] = out[0];
       }},
      {{"top-k", "the 512 best of 16384 scores", kFma},
       kEntries,
       4.0 * kEntries,
       [](const simd::Kernels&, float* row) {
         thread_local simd::TopkScratch scratch;
         std::int32_t selected[kTopk];
         simd::select_topk(row, kEntries, kTopk, selected, scratch);
       }},
      {{"sample-greedy", "the likeliest of 129280", kFma},
       kVocabulary,
       4.0 * kVocabulary,
       sample_with(0.0f, 1.0f)},
      {{"sample-top-p", "temperature 0.7, top-p 0.9 of 129280", kFma},
       kVocabulary,
       4.0 * kVocabulary,
       sample_with(0.7f, 0.9f)},
  };
}

// Passes over the working set until both are reached.
constexpr int kPasses = 3;
constexpr double kSeconds = 0.5;

CpuKernelResult run_rows(const RowKernel& row_kernel, const simd::Kernels& kernels,
                         const CpuKernelSizes& sizes) {
  ThreadPool pool(sizes.threads);
  const std::int64_t rows =
      std::max<std::int64_t>(sizes.working_set_bytes / (4 * row_kernel.row_floats), pool.size());
  std::vector<float> memory(static_cast<std::size_t>(rows * row_kernel.row_floats));
  pool.for_ranges(rows, 1, [&](std::int64_t begin, std::int64_t end) {
    std::minstd_rand random(static_cast<std::uint32_t>(begin) + 1);
    for (std::int64_t i = begin * row_kernel.row_floats; i < end * row_kernel.row_floats; ++i)
      memory[static_cast<std::size_t>(i)] = static_cast<float>(random()) * (8.0f / 0x1p31f) - 4.0f;
  });
  CpuKernelResult result;
  result.tokens = 1;
  result.calls = static_cast<std::int32_t>(rows);
  result.working_set_bytes = 4.0 * static_cast<double>(rows * row_kernel.row_floats);
  result.cost = {row_kernel.bytes, 0.0};
  std::vector<double> seconds;
  double spent = 0;
  for (int pass = 0; pass <= kPasses || spent < kSeconds; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    pool.for_ranges(rows, 1, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t i = from; i < to; ++i)
        row_kernel.call(kernels, memory.data() + i * row_kernel.row_floats);
    });
    const double taken = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (pass > 0) seconds.push_back(taken);
    spent += taken;
  }
  std::sort(seconds.begin(), seconds.end());
  result.seconds = seconds[seconds.size() / 2] / static_cast<double>(rows);
  result.best_seconds = seconds.front() / static_cast<double>(rows);
  return result;
}

// ---- models for the operators ----

struct Made {
  ModelWeights shapes;
  SynthesisOptions options;
};

std::int64_t copies_for(double bytes_each, const CpuKernelSizes& sizes) {
  return std::clamp<std::int64_t>(
      static_cast<std::int64_t>(static_cast<double>(sizes.working_set_bytes) / bytes_each) + 1, 1, 1024);
}

Made make(const Recipe& recipe, const CpuKernelSizes& sizes) {
  ModelConfig config = flash_config(1);
  config.num_hash_layers = 0;
  config.compress_ratios = {recipe.ratio};
  config.vocab_size = 1024;
  if (recipe.op == "logits")
    config.vocab_size = std::clamp<std::int64_t>(
        sizes.working_set_bytes / (2 * config.hidden_size) / 256 * 256, 256, kVocabulary);
  const ModelWeights one = shape_weights(config, recipe.experts);
  const LayerWeights& layer = one.layers.front();
  std::int64_t layers = recipe.part == 0 && recipe.op != "logits" ? 4 : 1;
  switch (recipe.part) {
    case kPartHyperConnection:
      layers = copies_for(2 * bytes_of(layer.attn_hc), sizes);  // a layer has two
      break;
    case kPartLatent:
      layers = copies_for(latent_cost(layer.attn, 1).bytes, sizes);
      break;
    case kPartQuery:
      layers = copies_for(query_cost(layer.attn, 1).bytes, sizes);
      break;
    case kPartOutput:
      layers = copies_for(output_cost(layer.attn, 1).bytes, sizes);
      break;
    case kPartRouter:
      layers = copies_for(bytes_of(layer.ffn.gate), sizes);
      break;
    default:
      break;
  }
  config.num_hidden_layers = layers;
  config.compress_ratios.assign(static_cast<std::size_t>(layers), recipe.ratio);
  Made made;
  made.options.own_parts = recipe.part;
  made.options.shared_embedding = true;
  const auto wanted = copies_for(bytes_of(layer.ffn.experts.front()), sizes);
  made.options.resident_experts = recipe.part == kPartExperts ? std::min(wanted, config.n_routed_experts) : 1;
  made.shapes = shape_weights(config, recipe.experts);
  // One format, so that a share is that of one kernel.
  if (recipe.part == kPartExperts)
    for (LayerWeights& l : made.shapes.layers) l.ffn.shared = l.ffn.experts.front();
  return made;
}

OperatorCase case_of(const Recipe& recipe, const CpuKernelSizes& sizes, std::int64_t tokens, bool prompt) {
  const bool cached = recipe.op == "index_select" || recipe.op.starts_with("attention (");
  return {cached ? sizes.context : std::min(sizes.context, kShortContext), static_cast<std::int32_t>(tokens),
          prompt};
}

Result<std::vector<CpuKernelResult>> run_recipe(const Recipe& recipe, const std::shared_ptr<Backend>& backend,
                                                Knobs knobs, const CpuKernelSizes& sizes) {
  if (!recipe.knob.empty())
    PIVOT_TRY_VOID(set_knobs(knobs, std::vector<std::string>{std::string(recipe.knob)}));
  Made made = make(recipe, sizes);
  PIVOT_TRY(const std::shared_ptr<const ModelWeights> weights,
            synthesize_weights(std::move(made.shapes), made.options, sizes.threads));
  std::vector<CpuKernelResult> results;
  const auto run = [&](std::int64_t tokens, bool prompt) -> Result<> {
    PIVOT_TRY(const std::unique_ptr<OperatorBench> bench,
              OperatorBench::create(backend, weights, knobs, case_of(recipe, sizes, tokens, prompt)));
    PIVOT_TRY(const std::optional<OperatorResult> r,
              bench->run(recipe.op, prompt ? PassLimits{1, 1, 0.0} : PassLimits{1, kPasses, kSeconds}));
    PIVOT_CHECK(r.has_value(), "{} has no layer of ratio {}", recipe.op, recipe.ratio);
    results.push_back({tokens, prompt, r->calls, r->seconds, r->best_seconds, r->working_set_bytes, r->cost});
    return {};
  };
  for (const std::int32_t batch : sizes.batches) PIVOT_TRY_VOID(run(batch, false));
  if (recipe.prompts)
    for (const std::int64_t tokens : sizes.prompt_tokens) PIVOT_TRY_VOID(run(tokens, true));
  return results;
}

}  // namespace

std::vector<CpuKernel> cpu_kernels() {
  std::vector<CpuKernel> kernels;
  for (const Recipe& recipe : recipes()) kernels.push_back(recipe.kernel);
  for (const RowKernel& row : row_kernels()) kernels.push_back(row.kernel);
  return kernels;
}

Result<std::vector<CpuKernel>> choose_cpu_kernels(const std::vector<std::string>& names) {
  const std::vector<CpuKernel> all = cpu_kernels();
  if (names.empty()) return all;
  std::vector<CpuKernel> chosen;
  for (const std::string& name : names) {
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const CpuKernel& kernel) { return kernel.name == name; });
    if (found == all.end()) {
      std::vector<std::string_view> known;
      for (const CpuKernel& kernel : all) known.push_back(kernel.name);
      return fail(ErrorCode::kInvalidArgument, "--op {} is no operator of the bench; there are {}", name,
                  fmt::join(known, ", "));
    }
    chosen.push_back(*found);
  }
  return chosen;
}

std::int64_t cpu_kernels_bytes(const std::vector<CpuKernel>& kernels, const CpuKernelSizes& sizes) {
  std::int64_t most = sizes.working_set_bytes;
  for (const CpuKernel& kernel : kernels)
    if (const Recipe* recipe = recipe_of(kernel.name)) {
      const Made made = make(*recipe, sizes);
      most = std::max(most, synthesized_bytes(made.shapes, made.options));
    }
  return most;
}

Result<std::vector<CpuKernelResult>> run_cpu_kernel(const CpuKernel& kernel,
                                                    const std::shared_ptr<Backend>& backend,
                                                    const Knobs& knobs, const CpuKernelSizes& sizes) {
  if (const Recipe* recipe = recipe_of(kernel.name)) return run_recipe(*recipe, backend, knobs, sizes);
  PIVOT_TRY(const simd::Isa isa, simd::choose_isa());
  for (const RowKernel& row : row_kernels())
    if (row.kernel.name == kernel.name)
      return std::vector<CpuKernelResult>{run_rows(row, simd::kernels(isa), sizes)};
  PIVOT_CHECK(false, "{}", kernel.name);
}

}  // namespace pivot::cli
