// The memory plan against what the engine allocates for the embedded model, byte class by byte class.
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/load.h"
#include "checkpoint/plan/memory.h"
#include "checkpoint/plan/plan.h"
#include "engine/devices.h"
#include "engine/session.h"
#include "ops/cuda/placement/placed_size.h"
#include "support/embedded_model.h"

namespace pivot {
namespace {

constexpr double kTolerance = 0.03;

ModelFacts embedded_facts(const CacheFormats& cache) {
  const auto subject = Subject::open(test::embedded_model_dir().string());
  if (!subject) throw std::runtime_error(subject.error().to_string());
  CheckpointFormats formats;
  auto facts = model_facts(*subject, cache, formats);
  if (!facts) throw std::runtime_error(facts.error().to_string());
  return *facts;
}

std::shared_ptr<const ModelWeights> embedded_weights() {
  static const auto weights = [] {
    auto loaded = load_model(test::embedded_model_dir().string());
    if (!loaded) throw std::runtime_error(loaded.error().to_string());
    return *loaded;
  }();
  return weights;
}

Machine one_gpu() {
  const auto catalogue = parse_hardware(embedded_hardware_json());
  if (!catalogue) throw std::runtime_error(catalogue.error().to_string());
  return *parse_machine("1xH200", "", 1, *catalogue);
}

std::int64_t state_bytes(const MemoryPlan& plan) {
  return plan.of(MemoryClass::kRatio4Rows) + plan.of(MemoryClass::kRatio128Rows) +
         plan.of(MemoryClass::kIndexKeys) + plan.of(MemoryClass::kPagePadding) +
         plan.of(MemoryClass::kRings) + plan.of(MemoryClass::kCompressorState);
}

void expect_close(std::int64_t planned, std::int64_t allocated) {
  EXPECT_NEAR(static_cast<double>(planned), static_cast<double>(allocated),
              kTolerance * static_cast<double>(allocated));
}

struct Case {
  KvFormat kv;
  IndexFormat index;
  std::int64_t context;
};

class EngineMemory : public testing::TestWithParam<Case> {};

TEST_P(EngineMemory, StateAndStepBuffersAreWhatASessionAllocates) {
  const Case& one = GetParam();
  SessionOptions options;
  options.weights = embedded_weights();
  options.backend = make_backend("cpu", 1).value();
  options.knobs.kv = one.kv == KvFormat::kBf16 ? KvPrecision::kBf16 : KvPrecision::kFp8;
  options.knobs.index_keys = one.index == IndexFormat::kBf16  ? IndexPrecision::kBf16
                             : one.index == IndexFormat::kFp8 ? IndexPrecision::kFp8
                                                              : IndexPrecision::kFp4;
  options.max_context = one.context;
  const auto session = Session::create(options);
  ASSERT_TRUE(session) << session.error().to_string();

  const ModelFacts facts = embedded_facts({one.kv, one.index});
  MemoryOptions memory;
  memory.sequences = 1;
  memory.context_tokens = one.context;
  const MemoryPlan plan = plan_memory(facts, one_gpu(), Parallelism::kTensor, 1, memory);
  expect_close(state_bytes(plan), (*session)->state_bytes());

  StepShape step;
  step.tokens = (*session)->chunk_tokens();
  step.logit_rows = 1;
  step.activation_bytes = options.backend->activation_bytes();
  expect_close(step_buffer_bytes(facts.config, step), (*session)->workspace_bytes());

  const std::int64_t placed = cuda::placed_bytes(*options.weights);
  expect_close(plan.weights(), placed);
  expect_close(plan.weights() + state_bytes(plan) + step_buffer_bytes(facts.config, step),
               placed + (*session)->state_bytes() + (*session)->workspace_bytes());
}

INSTANTIATE_TEST_SUITE_P(Embedded, EngineMemory,
                         testing::Values(Case{KvFormat::kPacked, IndexFormat::kFp4, 1000},
                                         Case{KvFormat::kPacked, IndexFormat::kFp4, 8192},
                                         Case{KvFormat::kPacked, IndexFormat::kFp8, 8192},
                                         Case{KvFormat::kBf16, IndexFormat::kBf16, 8192},
                                         Case{KvFormat::kPacked, IndexFormat::kFp4, 65536}));

}  // namespace
}  // namespace pivot
