// Rooflines, memory and recommendations against the performance notes (sections 1.4 to 1.8).
#include <gtest/gtest.h>

#include "checkpoint/plan/layouts.h"
#include "flash.h"

namespace pivot {
namespace {

using test::flash_facts;

HardwareCatalogue catalogue() {
  auto parsed = parse_hardware(embedded_hardware_json());
  EXPECT_TRUE(parsed) << parsed.error().to_string();
  return std::move(*parsed);
}

Machine machine(std::string_view gpus, int numa_nodes = 1) {
  auto parsed = parse_machine(gpus, "", numa_nodes, catalogue());
  EXPECT_TRUE(parsed) << parsed.error().to_string();
  return std::move(*parsed);
}

TEST(Hardware, EveryFigureNamesItsBasisAndSource) {
  const HardwareCatalogue known = catalogue();
  const auto check = [](const std::string& where, const Figure& figure) {
    EXPECT_GT(figure.value, 0) << where;
    EXPECT_FALSE(figure.source.empty()) << where;
    EXPECT_TRUE(figure.basis == "measured" || figure.basis == "published" || figure.basis == "derived" ||
                figure.basis == "assumption")
        << where << ": " << figure.basis;
  };
  ASSERT_FALSE(known.gpus.empty());
  for (const Gpu& gpu : known.gpus) {
    for (const Figure* figure : {&gpu.memory_gib, &gpu.bandwidth_gbs, &gpu.bandwidth_spec_gbs,
                                 &gpu.fp8_tflops, &gpu.fp4_tflops, &gpu.bf16_tflops})
      check(gpu.id, *figure);
    EXPECT_LE(gpu.bandwidth_gbs.value, gpu.bandwidth_spec_gbs.value) << gpu.id;
    EXPECT_TRUE(std::any_of(known.links.begin(), known.links.end(), [&](const Link& link) {
      return link.id == gpu.link;
    })) << gpu.id;
  }
  for (const Link& link : known.links) {
    for (const Figure* figure :
         {&link.pair_gbs, &link.ring_gbs, &link.cross_ring_gbs, &link.cross_all_reduce_us, &link.host_gbs})
      check(link.id, *figure);
    for (const auto& [gpus, figure] : link.all_reduce_us) check(link.id + " all-reduce", figure);
  }
}

TEST(Hardware, NamesAreReadLeniently) {
  for (const char* spelled : {"8xRTX-PRO-6000", "8xrtx_pro_6000", "8XRTX PRO 6000", "8xRTX-PRO-6000-Max-Q"}) {
    const Machine parsed = machine(spelled);
    EXPECT_EQ(parsed.gpu.id, "RTX-PRO-6000") << spelled;
    EXPECT_EQ(parsed.num_gpus, 8) << spelled;
    EXPECT_EQ(parsed.link.id, "pcie5x16") << spelled;
  }
  EXPECT_EQ(machine("H200").num_gpus, 1);
}

TEST(Hardware, BadNamesAreRefusedWithWhatIsKnown) {
  for (const char* bad : {"", "8x", "0xH200", "-1xH200", "8xGTX-970", "xH200", "99999999999xH200"}) {
    const auto parsed = parse_machine(bad, "", 1, catalogue());
    ASSERT_FALSE(parsed) << bad;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument) << bad;
  }
  EXPECT_NE(parse_machine("8xGTX-970", "", 1, catalogue()).error().message.find("RTX-PRO-6000"),
            std::string::npos);
  EXPECT_NE(parse_machine("8xH200", "token-ring", 1, catalogue()).error().message.find("pcie5x16"),
            std::string::npos);
  EXPECT_FALSE(parse_machine("2xH200", "", 3, catalogue()));
}

TEST(Roofline, DistinctExpertsAndStepBytes) {
  const ModelFacts facts = flash_facts();
  const double batches[] = {1, 2, 4, 8, 16, 32, 64, 128};
  const double distinct[] = {6.0, 11.9, 23.2, 44.2, 80.8, 136.2, 199.9, 243.7};
  const double gigabytes[] = {11.22, 14.59, 21.09, 33.20, 54.2, 86.0, 122.7, 147.9};
  for (std::size_t i = 0; i < std::size(batches); ++i) {
    EXPECT_NEAR(distinct_experts(facts.config, batches[i]), distinct[i], 0.06);
    EXPECT_NEAR(weight_bytes_read(facts, batches[i]) / 1e9, gigabytes[i], 0.06);
  }
}

struct DecodeCase {
  const char* gpus;
  int numa_nodes;
  double terabytes_per_second;
  double context;
  double batch;
  double ideal, naive, with_messages;  // tok/s, performance notes 1.7
};

TEST(Roofline, DecodeTable) {
  ModelFacts facts = flash_facts();
  for (const DecodeCase& one : {
           DecodeCase{"2xH200", 1, 4.3, 4096, 1, 766, 686, 554},
           DecodeCase{"8xH200", 1, 4.3, 4096, 1, 3063, 1687, 897},
           DecodeCase{"2xRTX-PRO-6000", 1, 1.79, 4096, 1, 319, 286, 248},
           DecodeCase{"4xRTX-PRO-6000", 1, 1.79, 4096, 1, 638, 472, 373},
           DecodeCase{"8xRTX-PRO-6000", 2, 1.79, 4096, 1, 1275, 702, 379},
           DecodeCase{"2xH200", 1, 4.3, 4096, 32, 3184, 3125, 3022},
           DecodeCase{"8xRTX-PRO-6000", 2, 1.79, 4096, 32, 5301, 4688, 3978},
           DecodeCase{"4xRTX-PRO-6000", 1, 1.79, 4096, 128, 6131, 5831, 5684},
           DecodeCase{"2xH200", 1, 4.3, 131072, 1, 759, 680, 550},
           DecodeCase{"2xRTX-PRO-6000", 1, 1.79, 131072, 32, 1278, 1250, 1225},
           DecodeCase{"2xH200", 1, 4.3, 1048576, 1, 714, 639, 523},
           DecodeCase{"8xH200", 1, 4.3, 1048576, 32, 9771, 7576, 6743},
       }) {
    const Machine box = machine(one.gpus, one.numa_nodes);
    DecodeAssumptions assumptions;
    assumptions.message_bytes = false;
    assumptions.bandwidth_bytes_per_second = one.terabytes_per_second * 1e12;
    const DecodeStep step =
        decode_step(facts, box, Parallelism::kTensor, box.num_gpus, one.batch, one.context, assumptions);
    EXPECT_NEAR(ideal_decode_tokens_per_second(facts, box, box.num_gpus, one.batch, one.context, assumptions),
                one.ideal, one.ideal * 0.004)
        << one.gpus;
    EXPECT_NEAR(one.batch / step.memory_seconds, one.naive, one.naive * 0.004)
        << one.gpus << " " << one.context << " " << one.batch;
    EXPECT_NEAR(one.batch / (step.memory_seconds + step.message_seconds), one.with_messages,
                one.with_messages * 0.004)
        << one.gpus;
  }
}

TEST(Roofline, ExpertsOnTheHost) {
  // 1.7: one H200, 7.5% of the experts behind a 50 GB/s link: 129 tok/s serial.
  Machine box = machine("1xH200");
  box.link.host_gbs.value = 50;
  DecodeAssumptions assumptions;
  assumptions.resident_experts = 0.925;
  assumptions.bandwidth_bytes_per_second = 4.3e12;
  const DecodeStep step = decode_step(flash_facts(), box, Parallelism::kTensor, 1, 1, 4096, assumptions);
  EXPECT_NEAR(step.tokens_per_second(), 129, 1);
  EXPECT_NEAR(1 / step.host_seconds, 193, 1);
}

struct PrefillCase {
  const char* gpus;
  int numa_nodes;
  std::int64_t tokens;
  double overlapped, serial;  // thousand tok/s, performance notes 1.8
};

TEST(Roofline, PrefillTable) {
  for (const PrefillCase& one :
       {PrefillCase{"2xH200", 1, 8192, 103, 87}, PrefillCase{"8xH200", 1, 8192, 325, 182},
        PrefillCase{"2xRTX-PRO-6000", 1, 8192, 52, 30}, PrefillCase{"4xRTX-PRO-6000", 1, 8192, 38, 27.8},
        PrefillCase{"8xRTX-PRO-6000", 2, 8192, 32, 28.1}, PrefillCase{"2xH200", 1, 65536, 91, 79},
        PrefillCase{"2xRTX-PRO-6000", 1, 131072, 41, 26},
        PrefillCase{"8xRTX-PRO-6000", 2, 131072, 32, 27.1}}) {
    const Machine box = machine(one.gpus, one.numa_nodes);
    const Prefill result = prefill(flash_facts(), box, Parallelism::kTensor, box.num_gpus, one.tokens);
    const auto tokens = static_cast<double>(one.tokens);
    EXPECT_NEAR(tokens / std::max(result.compute_seconds, result.message_seconds) / 1e3, one.overlapped,
                one.overlapped * 0.02)
        << one.gpus;
    EXPECT_NEAR(tokens / (result.compute_seconds + result.message_seconds) / 1e3, one.serial,
                one.serial * 0.02)
        << one.gpus;
  }
  // Pipelines move 32 KB per token and boundary: their steady rate is the compute roofline.
  const Machine box = machine("4xRTX-PRO-6000");
  EXPECT_NEAR(8192 / prefill(flash_facts(), box, Parallelism::kPipeline, 4, 8192).compute_seconds / 1e3, 104,
              1);
}

struct FitCase {
  const char* gpus;
  double weights_gib;     // per GPU, without the draft head
  double million_tokens;  // FP8 keys on every rank, 6 GiB reserve
};

TEST(Memory, FitTable) {
  ModelFacts facts = flash_facts();
  facts.split_index_keys = false;
  for (const FitCase& one : {FitCase{"1xH200", 145.3, 0}, FitCase{"2xH200", 73.7, 16.5},
                             FitCase{"4xH200", 38.0, 26.5}, FitCase{"8xH200", 20.1, 31.5},
                             FitCase{"1xRTX-PRO-6000", 145.3, 0}, FitCase{"2xRTX-PRO-6000", 73.7, 4.2},
                             FitCase{"4xRTX-PRO-6000", 38.0, 14.2}, FitCase{"8xRTX-PRO-6000", 20.1, 19.2}}) {
    const Machine box = machine(one.gpus);
    MemoryOptions options;
    options.draft = false;
    options.offload = false;
    const MemoryPlan plan = plan_memory(facts, box, Parallelism::kTensor, box.num_gpus, options);
    constexpr double kGib = 1024.0 * 1024 * 1024;
    EXPECT_NEAR(static_cast<double>(plan.weights()) / kGib, one.weights_gib, 0.06) << one.gpus;
    const double free = static_cast<double>(plan.available - plan.weights()) - 6 * kGib;
    const double per_token = cache_bytes(facts.config, facts.cache, 0).per_token();
    EXPECT_NEAR(static_cast<double>(capacity_tokens(free, per_token)) / 1e6, one.million_tokens, 0.2)
        << one.gpus;
    EXPECT_EQ(plan.fits(), one.million_tokens > 0) << one.gpus;
  }
}

TEST(Memory, ClassesOfAllLayoutsSumToTheModel) {
  const ModelFacts facts = flash_facts();
  const Machine box = machine("4xRTX-PRO-6000");
  MemoryOptions options;
  options.offload = false;
  // TP: ranks are equal; what is split adds up to the whole, what is replicated is there once each.
  const MemoryPlan tensor = plan_memory(facts, box, Parallelism::kTensor, 4, options);
  const auto experts = facts.bytes.of(Module::kRoutedExpert);
  EXPECT_EQ(tensor.of(MemoryClass::kExperts) * 4, experts);
  EXPECT_EQ(tensor.of(MemoryClass::kEmbedding), facts.bytes.of(Module::kEmbedding));
  EXPECT_NEAR(static_cast<double>(tensor.of(MemoryClass::kShardedWeights) * 4),
              static_cast<double>(facts.bytes.sharded() - experts), 4096);
  EXPECT_EQ(tensor.of(MemoryClass::kReplicatedWeights),
            facts.bytes.replicated() - facts.bytes.of(Module::kEmbedding));
  // EP: everything but the experts on every GPU.
  const MemoryPlan expert = plan_memory(facts, box, Parallelism::kExpert, 4, options);
  EXPECT_EQ(expert.of(MemoryClass::kExperts) * 4, experts);
  EXPECT_EQ(expert.of(MemoryClass::kReplicatedWeights) + expert.of(MemoryClass::kEmbedding),
            facts.bytes.backbone() - experts);
  // PP: the fullest stage has at least a quarter and at most two layers more than it.
  const MemoryPlan pipeline = plan_memory(facts, box, Parallelism::kPipeline, 4, options);
  EXPECT_GE(pipeline.weights(), facts.bytes.total() / 4);
  EXPECT_LT(pipeline.weights(), facts.bytes.total() / 4 + 3 * facts.bytes.layers[2].total());
}

TEST(Memory, ExpertsMoveToTheHostOnlyWhereTheyMust) {
  const ModelFacts facts = flash_facts();
  MemoryOptions options;
  options.context_tokens = 4096;
  const MemoryPlan one = plan_memory(facts, machine("1xH200"), Parallelism::kTensor, 1, options);
  EXPECT_TRUE(one.fits());
  EXPECT_LT(one.resident_experts, 1);
  EXPECT_GT(one.resident_experts, 0.85);
  EXPECT_NEAR(static_cast<double>(one.host_bytes),
              static_cast<double>(facts.bytes.of(Module::kRoutedExpert)) * (1 - one.resident_experts), 16);
  const MemoryPlan two = plan_memory(facts, machine("2xH200"), Parallelism::kTensor, 2, options);
  EXPECT_EQ(two.resident_experts, 1);
  EXPECT_EQ(two.host_bytes, 0);
}

std::vector<Evaluation> evaluate_all(const ModelFacts& facts, const Machine& box, const Workload& workload) {
  std::vector<Evaluation> evaluations;
  for (const Arrangement& arrangement : arrangements(facts.config, box))
    evaluations.push_back(evaluate(facts, box, arrangement, workload));
  return evaluations;
}

TEST(Recommendation, ReplicasOrPipelinesBeatTp8OnPcie) {
  const ModelFacts facts = flash_facts(IndexFormat::kFp4);
  const Machine box = machine("8xRTX-PRO-6000", 2);
  const Workload workload;
  const auto evaluations = evaluate_all(facts, box, workload);
  const auto recommendation = recommend(facts, box, workload, evaluations);
  ASSERT_TRUE(recommendation);
  const Evaluation& best = evaluations[recommendation->best];
  EXPECT_TRUE(best.fits);
  EXPECT_NE(best.arrangement.name(), "TP8");
  for (const Evaluation& evaluation : evaluations) {
    if (evaluation.arrangement.name() != "TP8") continue;
    EXPECT_LT(evaluation.requests_per_second, best.requests_per_second);
    EXPECT_LT(evaluation.total_prefill_tokens_per_second, 35e3);
  }
  EXPECT_GE(recommendation->reasons.size(), 4u);
}

TEST(Recommendation, OneGpuOffloadsAndSaysSo) {
  const ModelFacts facts = flash_facts();
  const Machine box = machine("1xH200");
  const Workload workload{4096, 256, 1};
  const auto evaluations = evaluate_all(facts, box, workload);
  const auto recommendation = recommend(facts, box, workload, evaluations);
  ASSERT_TRUE(recommendation);
  EXPECT_LT(evaluations[recommendation->best].memory.resident_experts, 1);
  EXPECT_TRUE(
      std::any_of(recommendation->reasons.begin(), recommendation->reasons.end(),
                  [](const std::string& reason) { return reason.find("host memory") != std::string::npos; }));
}

TEST(Recommendation, NothingFitsOnATinyCard) {
  const ModelFacts facts = flash_facts();
  Machine box = machine("1xRTX-5090");
  box.gpu.memory_gib.value = 4;
  const Workload workload{4096, 256, 1};
  const auto evaluations = evaluate_all(facts, box, workload);
  EXPECT_FALSE(recommend(facts, box, workload, evaluations));
  for (const Evaluation& evaluation : evaluations) EXPECT_FALSE(evaluation.obstacle.empty());
}

TEST(Recommendation, KvMemoryLimitsWhatIsAdmitted) {
  const ModelFacts facts = flash_facts();
  const Machine box = machine("2xRTX-PRO-6000");
  const Workload workload{1 << 20, 512, 64};
  const Evaluation evaluation = evaluate(facts, box, {{Parallelism::kTensor, 2, 1}, std::nullopt}, workload);
  EXPECT_TRUE(evaluation.fits);
  EXPECT_LT(evaluation.admitted, 10);
  EXPECT_GE(evaluation.admitted, 1);
  EXPECT_EQ(evaluation.memory.resident_experts, 1);
}

}  // namespace
}  // namespace pivot
