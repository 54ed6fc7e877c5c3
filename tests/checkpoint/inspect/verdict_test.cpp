// The right verdict on every real config and header set (specification 1.2, 1.3, 4.6).
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "checkpoint/inspect/inspection.h"
#include "checkpoint/inspect/inspection_report.h"
#include "support/json_schema.h"
#include "support/test_data.h"

namespace pivot {
namespace {

namespace fs = std::filesystem;

struct HeaderCase {
  const char* headers;  // below real/headers
  const char* config;   // below real/configs
  std::size_t tensors;
  std::int64_t bytes;
  std::string family, variant;
  ExpertFormat experts;
  HeadKind head;
  int stages;
  bool supported;
};

const HeaderCase kHeaderCases[] = {
    {"DeepSeek-V4-Flash.headers.json.gz", "DeepSeek-V4-Flash", 69187, 159'609'485'896, "DeepSeek-V4-Flash",
     "preview", ExpertFormat::kMxfp4, HeadKind::kMtp, 1, true},
    {"DeepSeek-V4-Flash-0731.headers.json.gz", "DeepSeek-V4-Flash-0731", 72317, 166'878'536'440,
     "DeepSeek-V4-Flash", "0731 or DSpark", ExpertFormat::kMxfp4, HeadKind::kDspark, 3, true},
    {"DeepSeek-V4-Flash-0731-REAP160.headers.json.gz", "DeepSeek-V4-Flash-0731-REAP160", 45821, 0,
     "DeepSeek-V4-Flash", "0731 or DSpark, pruned to 160 of 256 experts", ExpertFormat::kMxfp4,
     HeadKind::kDspark, 3, true},
    {"nvidia-DeepSeek-V4-Flash-NVFP4.headers.DERIVED.json.gz", "nvidia-DeepSeek-V4-Flash-NVFP4", 135235,
     168'266'793'544, "DeepSeek-V4-Flash", "NVFP4 (preview)", ExpertFormat::kNvfp4ModelOpt, HeadKind::kMtp, 1,
     true},
};

TEST(Verdict, EveryRealHeaderSet) {
  PIVOT_NEED_DATA(real, "real");
  for (const HeaderCase& one : kHeaderCases) {
    SCOPED_TRACE(one.headers);
    const auto subject = Subject::open((real / "headers" / one.headers).string(),
                                       real / "configs" / one.config / "config.json");
    ASSERT_TRUE(subject) << subject.error().to_string();
    const Inspection inspection = inspect(*subject, {});
    const Identification& id = inspection.identification;
    EXPECT_EQ(id.family, one.family);
    EXPECT_EQ(id.variant, one.variant);
    EXPECT_EQ(id.expert_format, one.experts);
    EXPECT_EQ(id.head, one.head);
    EXPECT_EQ(id.draft_stages, one.stages);
    EXPECT_EQ(id.supported, one.supported) << id.refusal;
    EXPECT_EQ(inspection.tensors.tensors, static_cast<std::int64_t>(one.tensors));
    if (one.bytes > 0) {
      EXPECT_EQ(inspection.tensors.bytes, one.bytes);
    }
    EXPECT_TRUE(inspection.audit.clean())
        << (inspection.audit.missing.empty() ? "" : inspection.audit.missing.front());
    EXPECT_EQ(inspection.audit.expected, inspection.audit.found);
    EXPECT_TRUE(inspection.problems.empty()) << inspection.problems.front();
    EXPECT_TRUE(inspection.fingerprint.empty());  // needs data
    EXPECT_EQ(inspection.header_fingerprint.size(), 16u);
    EXPECT_EQ(test::schema_faults(inspection_json(inspection), "inspect.json"), std::vector<std::string>());
  }
}

TEST(Verdict, EveryRealHeaderSetWithoutItsConfig) {
  PIVOT_NEED_DATA(real, "real/headers");
  for (const HeaderCase& one : kHeaderCases) {
    SCOPED_TRACE(one.headers);
    const auto subject = Subject::open((real / one.headers).string());
    ASSERT_TRUE(subject) << subject.error().to_string();
    const Inspection inspection = inspect(*subject, {});
    const Identification& id = inspection.identification;
    EXPECT_EQ(id.family, one.family);
    EXPECT_EQ(id.variant, one.variant);
    EXPECT_EQ(id.confidence, Confidence::kMedium);
    EXPECT_FALSE(id.supported);
    EXPECT_NE(id.refusal.find("there is no config.json"), std::string::npos) << id.refusal;
    EXPECT_EQ(inspection.verdict.find(one.family + " " + one.variant), 0u) << inspection.verdict;
  }
}

TEST(Verdict, HeaderFingerprintsTellTheSetsApart) {
  PIVOT_NEED_DATA(real, "real/headers");
  std::set<std::string> seen;
  for (const HeaderCase& one : kHeaderCases) {
    const auto subject = Subject::open((real / one.headers).string());
    ASSERT_TRUE(subject) << subject.error().to_string();
    EXPECT_TRUE(seen.insert(header_fingerprint(subject->table())).second) << one.headers;
  }
}

TEST(Verdict, StagesAreCountedFromNamesNotFromTheConfig) {
  PIVOT_NEED_DATA(real, "real");
  const auto subject = Subject::open((real / "headers/DeepSeek-V4-Flash-0731.headers.json.gz").string(),
                                     real / "configs/DeepSeek-V4-Flash-0731/config.json");
  ASSERT_TRUE(subject);
  const Inspection inspection = inspect(*subject, {});
  EXPECT_TRUE(std::any_of(inspection.notes.begin(), inspection.notes.end(), [](const std::string& note) {
    return note.find("num_nextn_predict_layers is 1 although 3") != std::string::npos;
  }));
}

TEST(Verdict, AConfigOfAnotherCheckpointContradicts) {
  PIVOT_NEED_DATA(real, "real");
  const auto subject =
      Subject::open((real / "headers/DeepSeek-V4-Flash-0731-REAP160.headers.json.gz").string(),
                    real / "configs/DeepSeek-V4-Flash/config.json");
  ASSERT_TRUE(subject);
  const Inspection inspection = inspect(*subject, {});
  EXPECT_FALSE(inspection.problems.empty());
  EXPECT_NE(inspection.problems.front().find("n_routed_experts"), std::string::npos);
  EXPECT_FALSE(inspection.audit.clean());
  for (const BackendVerdict& backend : inspection.backends) EXPECT_FALSE(backend.loads);
}

struct ConfigCase {
  const char* folder;  // below real/configs
  std::string family;
  std::string variant;  // empty where refused
  std::string refusal;  // a part of the sentence
};

const ConfigCase kConfigCases[] = {
    {"DeepSeek-V4-Flash", "DeepSeek-V4-Flash", "preview", ""},
    {"DeepSeek-V4-Flash-0731", "DeepSeek-V4-Flash", "0731 or DSpark", ""},
    {"DeepSeek-V4-Flash-0731-REAP160", "DeepSeek-V4-Flash", "0731 or DSpark, pruned to 160 of 256 experts",
     ""},
    {"DeepSeek-V4-Flash-Base", "DeepSeek-V4-Flash", "Base", ""},
    {"DeepSeek-V4-Pro", "DeepSeek-V4-Pro", "preview", ""},
    {"nvidia-DeepSeek-V4-Flash-NVFP4", "DeepSeek-V4-Flash", "NVFP4 (preview)", ""},
    {"nvidia-DeepSeek-V4-Flash-0731-NVFP4", "DeepSeek-V4-Flash", "NVFP4 (0731 or DSpark)", ""},
    {"DeepSeek-V4.1-Flash", "DeepSeek-V4.1", "", "V4.1"},
    {"nvidia-DeepSeek-V4.1-Flash-NVFP4", "DeepSeek-V4.1", "", "V4.1"},
    {"refuse/DeepSeek-V2-Lite", "", "", "DeepSeek-V4"},
    {"refuse/DeepSeek-V3.2", "", "", "DeepSeek-V4"},
    {"refuse/Qwen3-30B-A3B", "", "", "DeepSeek-V4"},
    {"refuse/gpt-oss-120b", "", "", "DeepSeek-V4"},
};

TEST(Verdict, EveryRealConfig) {
  PIVOT_NEED_DATA(configs, "real/configs");
  for (const ConfigCase& one : kConfigCases) {
    SCOPED_TRACE(one.folder);
    const auto subject = Subject::open((configs / one.folder).string());
    ASSERT_TRUE(subject) << subject.error().to_string();
    const Inspection inspection = inspect(*subject, {});
    EXPECT_EQ(inspection.identification.family.rfind(one.family, 0), 0u) << inspection.identification.family;
    EXPECT_EQ(inspection.identification.variant, one.variant) << inspection.verdict;
    EXPECT_FALSE(inspection.identification.supported);  // nothing to load
    if (!one.refusal.empty()) {
      EXPECT_NE(inspection.identification.refusal.find(one.refusal), std::string::npos)
          << inspection.identification.refusal;
    }
    EXPECT_EQ(inspection.config.has_value(), one.refusal.empty());
    EXPECT_FALSE(inspection.verdict.empty());
  }
}

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Verdict, ModelOptMetadataOfBothGenerations) {
  PIVOT_NEED_DATA(configs, "real/configs");
  const fs::path nvidia = configs / "nvidia-DeepSeek-V4-Flash-NVFP4";
  const std::string config = text_of(nvidia / "config.json");
  const std::string plain = text_of(configs / "DeepSeek-V4-Flash/config.json");
  const auto early = read_maybe_gzip(nvidia / "hf_quant_config.early-layout.json.gz");
  ASSERT_TRUE(early);
  EXPECT_EQ(quantization_layout(plain, std::nullopt), "no ModelOpt metadata");
  EXPECT_EQ(quantization_layout(config, text_of(nvidia / "hf_quant_config.json")),
            "ModelOpt, current layout (both files)");
  EXPECT_EQ(quantization_layout(config, std::nullopt), "ModelOpt, in config.json only");
  EXPECT_EQ(quantization_layout(plain, *early), "ModelOpt, early layout (per projection, awq_block_size)");
  EXPECT_EQ(quantization_layout("{broken", "also broken"), "no ModelOpt metadata");
}

TEST(Verdict, EarlyLayoutIsNvfp4ByDtype) {
  PIVOT_NEED_DATA(real, "real");
  // The first published revision: the source's config.json, and the early hf_quant_config.json beside it.
  const fs::path folder = test::scratch_dir();
  fs::copy_file(real / "configs/DeepSeek-V4-Flash/config.json", folder / "config.json");
  const auto early =
      read_maybe_gzip(real / "configs/nvidia-DeepSeek-V4-Flash-NVFP4/hf_quant_config.early-layout.json.gz");
  ASSERT_TRUE(early);
  std::ofstream(folder / "hf_quant_config.json") << *early;
  const auto subject =
      Subject::open((real / "headers/nvidia-DeepSeek-V4-Flash-NVFP4.headers.DERIVED.json.gz").string(),
                    folder / "config.json");
  ASSERT_TRUE(subject);
  const Inspection inspection = inspect(*subject, {});
  EXPECT_EQ(inspection.identification.variant, "NVFP4 (preview)");
  EXPECT_TRUE(inspection.identification.supported) << inspection.identification.refusal;
  EXPECT_NE(inspection.quantization_layout.find("early layout"), std::string::npos);
  EXPECT_TRUE(std::any_of(inspection.notes.begin(), inspection.notes.end(), [](const std::string& note) {
    return note.find("does not say NVFP4") != std::string::npos;
  }));
}

}  // namespace
}  // namespace pivot
