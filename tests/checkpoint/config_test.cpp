// config.json: what is read, and every way it can be wrong (specification 1.1, fault B25).
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/file.h"
#include "checkpoint/family.h"
#include "checkpoint/flash_config.h"
#include "checkpoint/json_text.h"
#include "checkpoint/model_config.h"
#include "checkpoint/quantization.h"
#include "checkpoint/safetensors.h"
#include "support/test_data.h"
#include "support/tiny_checkpoint.h"

namespace pivot {
namespace {

using nlohmann::json;

json tiny() {
  test::TinyOptions options;
  options.head = test::TinyHead::kDspark;
  return json::parse(test::tiny_config_json(options));
}

std::string error_of(const json& config) {
  const auto parsed = parse_model_config(config.dump(), "config.json");
  EXPECT_FALSE(parsed.has_value());
  return parsed ? "" : parsed.error().to_string();
}

void expect_mentions(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (std::string_view part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}

TEST(ModelConfig, ReadsEveryKey) {
  const auto config = parse_model_config(tiny().dump(), "config.json");
  ASSERT_TRUE(config.has_value()) << config.error().to_string();
  EXPECT_EQ(config->num_hidden_layers, 6);
  EXPECT_EQ(config->compress_ratios, (std::vector<int>{0, 0, 4, 128, 4, 128}));
  EXPECT_EQ(config->draft_compress_ratios, (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(config->head_dim, 512);
  EXPECT_EQ(config->nope_head_dim(), 448);
  EXPECT_EQ(config->index_topk, 16);
  EXPECT_EQ(config->routed_scaling_factor, 1.5);
  EXPECT_EQ(config->dspark_block_size, 5);
  EXPECT_EQ(config->dspark_target_layer_ids, (std::vector<int>{3, 4, 5}));
  EXPECT_TRUE(config->hash_routed(0));
  EXPECT_FALSE(config->hash_routed(1));
  EXPECT_EQ(config->rope(0).theta, 10000.0);
  EXPECT_FALSE(config->rope(0).factor.has_value());
  EXPECT_EQ(config->rope(2).theta, 160000.0);
  EXPECT_EQ(config->rope(3).factor, 16.0);
}

// Fault B25: three spellings of the same rotary embedding.
TEST(ModelConfig, RopeSpellingsMeanTheSame) {
  json base = tiny();
  json with_rope_type = base;
  with_rope_type["rope_scaling"].erase("type");
  with_rope_type["rope_scaling"]["rope_type"] = "yarn";
  json nested = base;
  json compress = base["rope_scaling"];
  compress.erase("type");
  compress["rope_type"] = "yarn";
  compress["rope_theta"] = 160000;
  for (const char* key : {"rope_theta", "compress_rope_theta", "rope_scaling"}) nested.erase(key);
  nested["rope_parameters"] = {{"main", {{"rope_type", "default"}, {"rope_theta", 10000}}},
                               {"compress", compress}};
  json both = base;
  both["rope_parameters"] = nested["rope_parameters"];
  for (const json& config : {base, with_rope_type, nested, both}) {
    const auto parsed = parse_model_config(config.dump(), "config.json");
    ASSERT_TRUE(parsed.has_value()) << parsed.error().to_string();
    EXPECT_EQ(parsed->rope_main.theta, 10000.0);
    EXPECT_FALSE(parsed->rope_main.factor.has_value());
    EXPECT_EQ(parsed->rope_compress.theta, 160000.0);
    EXPECT_EQ(parsed->rope_compress.factor, 16.0);
    EXPECT_EQ(parsed->rope_compress.original_max_position_embeddings, 4096);
    EXPECT_EQ(parsed->rope_compress.beta_fast, 32.0);
    EXPECT_EQ(parsed->rope_compress.beta_slow, 1.0);
  }
  both["rope_parameters"]["compress"]["factor"] = 8;
  expect_mentions(error_of(both), {"rope_scaling", "rope_parameters.compress", "contradict"});
  both = base;
  both["rope_parameters"] = nested["rope_parameters"];
  both["rope_parameters"]["main"]["rope_theta"] = 5000;
  expect_mentions(error_of(both), {"rope_theta", "10000", "5000", "contradict"});
}

struct BadConfig {
  const char* what;
  std::function<void(json&)> edit;
  std::vector<const char*> mentions;
};

TEST(ModelConfig, RefusesByKeyName) {
  const std::vector<BadConfig> cases = {
      {"no rope_scaling", [](json& c) { c.erase("rope_scaling"); }, {"rope_scaling", "missing", "YaRN"}},
      {"null rope_scaling", [](json& c) { c["rope_scaling"] = nullptr; }, {"rope_scaling", "missing"}},
      {"unknown rope type",
       [](json& c) { c["rope_scaling"]["type"] = "yarnn"; },
       {"rope_scaling.type", "yarnn"}},
      {"rope types contradict",
       [](json& c) { c["rope_scaling"]["rope_type"] = "linear"; },
       {"rope_scaling.rope_type", "contradict"}},
      {"no rope type", [](json& c) { c["rope_scaling"].erase("type"); }, {"rope_scaling.type", "missing"}},
      {"no beta_fast",
       [](json& c) { c["rope_scaling"].erase("beta_fast"); },
       {"rope_scaling.beta_fast", "missing"}},
      {"amplitude", [](json& c) { c["rope_scaling"]["mscale"] = 0.707; }, {"rope_scaling.mscale"}},
      {"yarn on window layers",
       [](json& c) {
         c["rope_parameters"] = {{"main", {{"rope_type", "yarn"}}}, {"compress", c["rope_scaling"]}};
       },
       {"rope_parameters.main.rope_type"}},
      {"flat rope_parameters",
       [](json& c) { c["rope_parameters"] = c["rope_scaling"]; },
       {"rope_parameters.main", "rope_parameters.compress"}},
      {"no thetas",
       [](json& c) {
         c.erase("rope_theta");
         c.erase("compress_rope_theta");
       },
       {"\"rope_theta\"", "\"compress_rope_theta\""}},
      {"no max_position_embeddings",
       [](json& c) { c.erase("max_position_embeddings"); },
       {"max_position_embeddings", "missing"}},
      {"no compress_ratios",
       [](json& c) { c.erase("compress_ratios"); },
       {"compress_ratios", "missing", "never guessed"}},
      {"short compress_ratios",
       [](json& c) {
         c["compress_ratios"] = {0, 4};
       },
       {"compress_ratios", "2 entries", "6"}},
      {"endless compress_ratios",
       [](json& c) { c["compress_ratios"] = std::vector<int>(40, 0); },
       {"compress_ratios", "40 entries"}},
      {"ratio 2", [](json& c) { c["compress_ratios"][2] = 2; }, {"compress_ratios", "entry 2", "is 2"}},
      {"text ratio", [](json& c) { c["compress_ratios"][1] = "4"; }, {"compress_ratios", "entry 1"}},
      {"compressed draft",
       [](json& c) { c["compress_ratios"][7] = 4; },
       {"compress_ratios", "entry 7", "draft"}},
      {"quant_method",
       [](json& c) { c["quantization_config"]["quant_method"] = "gptq"; },
       {"quantization_config.quant_method", "gptq"}},
      {"block size",
       [](json& c) {
         c["quantization_config"]["weight_block_size"] = {32, 32};
       },
       {"quantization_config.weight_block_size", "[32,32]"}},
      {"expert_dtype", [](json& c) { c["expert_dtype"] = "int3"; }, {"expert_dtype", "int3"}},
      {"scoring_func", [](json& c) { c["scoring_func"] = "sigmoid"; }, {"scoring_func", "sigmoid"}},
      {"no scoring_func", [](json& c) { c.erase("scoring_func"); }, {"scoring_func", "missing"}},
      {"topk_method", [](json& c) { c["topk_method"] = "greedy"; }, {"topk_method", "greedy"}},
      {"activation", [](json& c) { c["hidden_act"] = "gelu"; }, {"hidden_act", "gelu"}},
      {"kv heads", [](json& c) { c["num_key_value_heads"] = 8; }, {"num_key_value_heads", "8"}},
      {"tied head", [](json& c) { c["tie_word_embeddings"] = true; }, {"tie_word_embeddings"}},
      {"negative", [](json& c) { c["index_topk"] = -1; }, {"index_topk", "-1"}},
      {"zero", [](json& c) { c["hidden_size"] = 0; }, {"hidden_size", "is 0"}},
      {"huge", [](json& c) { c["vocab_size"] = 1e300; }, {"vocab_size"}},
      {"fraction", [](json& c) { c["num_attention_heads"] = 4.5; }, {"num_attention_heads", "4.5"}},
      {"string", [](json& c) { c["q_lora_rank"] = "128"; }, {"q_lora_rank"}},
      {"infinite scale", [](json& c) { c["routed_scaling_factor"] = 1e99; }, {"routed_scaling_factor"}},
      {"rope above head", [](json& c) { c["qk_rope_head_dim"] = 512; }, {"qk_rope_head_dim", "head_dim"}},
      {"odd rope", [](json& c) { c["qk_rope_head_dim"] = 63; }, {"qk_rope_head_dim", "even"}},
      {"index head", [](json& c) { c["index_head_dim"] = 96; }, {"index_head_dim", "power of two"}},
      {"groups", [](json& c) { c["o_groups"] = 3; }, {"num_attention_heads", "o_groups"}},
      {"fp4 group", [](json& c) { c["moe_intermediate_size"] = 100; }, {"moe_intermediate_size", "32"}},
      {"top-k of experts",
       [](json& c) { c["num_experts_per_tok"] = 9; },
       {"num_experts_per_tok", "n_routed_experts"}},
      {"shared experts", [](json& c) { c["n_shared_experts"] = 2; }, {"n_shared_experts"}},
      {"hash layers", [](json& c) { c["num_hash_layers"] = 7; }, {"num_hash_layers"}},
      {"eos", [](json& c) { c["eos_token_id"] = 512; }, {"eos_token_id"}},
      {"tapped layer", [](json& c) { c["dspark_target_layer_ids"] = {6}; }, {"dspark_target_layer_ids", "6"}},
  };
  for (const BadConfig& bad : cases) {
    SCOPED_TRACE(bad.what);
    json config = tiny();
    bad.edit(config);
    const std::string error = error_of(config);
    for (const char* part : bad.mentions) expect_mentions(error, {part});
  }
}

TEST(ModelConfig, ReportsAllProblemsAtOnce) {
  json config = tiny();
  config.erase("hc_eps");
  config["scoring_func"] = "softmax";
  config["index_topk"] = 0;
  expect_mentions(error_of(config), {"config.json has 3 problems", "hc_eps", "scoring_func", "index_topk"});
}

TEST(ModelConfig, WindowOnlyModelsNeedNoYarn) {
  json config = tiny();
  config["compress_ratios"] = std::vector<int>(9, 0);
  config.erase("rope_scaling");
  config.erase("compress_rope_theta");
  const auto parsed = parse_model_config(config.dump(), "config.json");
  ASSERT_TRUE(parsed.has_value()) << parsed.error().to_string();
}

TEST(ModelConfig, MalformedJsonIsRefusedWithItsPlace) {
  for (const char* text :
       {"", "{", "[]", "nul", "{\"a\":1}x", "\xff{}", "{\"model_type\":\"deepseek_v4\",}"}) {
    const auto parsed = parse_model_config(text, "some/config.json");
    ASSERT_FALSE(parsed.has_value()) << text;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidData);
  }
  std::string twice = tiny().dump();
  twice.insert(1, "\"index_topk\":512,");
  expect_mentions(parse_model_config(twice, "config.json").error().to_string(), {"\"index_topk\" twice"});
  // The same key in two different objects is no repetition.
  EXPECT_TRUE(parse_json_object(R"({"a":{"x":1},"b":{"x":1,"y":{"x":2}}})", "t").has_value());
  EXPECT_FALSE(parse_json_object(R"({"b":{"x":1,"y":{"x":2,"x":3}}})", "t").has_value());
}

TEST(ModelConfig, OtherFamiliesGetOneSentence) {
  struct Foreign {
    json config;
    const char* name;
  };
  const Foreign cases[] = {
      {{{"model_type", "deepseek_v41"}}, "DeepSeek-V4.1"},
      {{{"model_type", "deepseek_v4"}, {"architectures", {"DeepseekV41ForCausalLM"}}}, "DeepSeek-V4.1"},
      {{{"model_type", "deepseek_v4"}, {"text_config", json::object()}}, "multimodal"},
      {{{"model_type", "deepseek_v32"}}, "DeepSeek-V3.2"},
      {{{"model_type", "deepseek_v2"}}, "DeepSeek-V2"},
      {{{"model_type", "qwen3_moe"}}, "Qwen3-MoE"},
      {{{"model_type", "gpt_oss"}}, "gpt-oss"},
      {{{"model_type", "starfish"}}, "unknown model"},
      {{{"dim", 4096}, {"n_layers", 43}}, "inference code"},
      {json::object(), "no \"model_type\""},
  };
  for (const Foreign& foreign : cases) {
    const auto parsed = parse_model_config(foreign.config.dump(), "config.json");
    ASSERT_FALSE(parsed.has_value());
    EXPECT_EQ(parsed.error().code, ErrorCode::kUnsupported);
    expect_mentions(parsed.error().message, {foreign.name});
    EXPECT_EQ(parsed.error().message.find('\n'), std::string::npos);
  }
}

TEST(ModelConfig, MissingFileSaysWhatWasWanted) {
  const auto config = load_model_config(test::scratch_dir());
  ASSERT_FALSE(config.has_value());
  EXPECT_EQ(config.error().code, ErrorCode::kNotFound);
  expect_mentions(config.error().message, {"config.json", "checkpoint folder"});
}

TEST(RealConfigs, EveryV4ConfigParses) {
  PIVOT_NEED_DATA(configs, "real/configs");
  struct Expected {
    const char* folder;
    const char* family;
    std::int64_t layers;
    std::size_t drafts;
    std::int64_t topk;
    std::int64_t experts;
  };
  const Expected cases[] = {
      {"DeepSeek-V4-Flash", "DeepSeek-V4-Flash", 43, 1, 512, 256},
      {"DeepSeek-V4-Flash-Base", "DeepSeek-V4-Flash", 43, 1, 512, 256},
      {"DeepSeek-V4-Flash-0731", "DeepSeek-V4-Flash", 43, 3, 512, 256},
      {"DeepSeek-V4-Flash-0731-REAP160", "DeepSeek-V4-Flash", 43, 3, 512, 160},
      {"nvidia-DeepSeek-V4-Flash-NVFP4", "DeepSeek-V4-Flash", 43, 1, 512, 256},
      {"nvidia-DeepSeek-V4-Flash-0731-NVFP4", "DeepSeek-V4-Flash", 43, 3, 512, 256},
      {"DeepSeek-V4-Pro", "DeepSeek-V4-Pro", 61, 1, 1024, 384},
  };
  for (const Expected& expected : cases) {
    SCOPED_TRACE(expected.folder);
    const auto config = load_model_config(configs / expected.folder);
    ASSERT_TRUE(config.has_value()) << config.error().to_string();
    EXPECT_EQ(config->num_hidden_layers, expected.layers);
    EXPECT_EQ(config->compress_ratios.size(), static_cast<std::size_t>(expected.layers));
    EXPECT_EQ(config->draft_compress_ratios.size(), expected.drafts);
    EXPECT_EQ(config->index_topk, expected.topk);
    EXPECT_EQ(config->n_routed_experts, expected.experts);
    EXPECT_EQ(config->ratio(expected.layers - 1), 4);  // the last layer is not window-only
    EXPECT_EQ(config->rope_compress.factor, 16.0);
    EXPECT_EQ(config->rope_compress.original_max_position_embeddings, 65536);
    EXPECT_EQ(config->max_position_embeddings, 1048576);
    const auto text = read_file(configs / expected.folder / "config.json");
    EXPECT_EQ(model_family(json::parse(*text)).name, expected.family);
  }
  const auto flash = load_model_config(configs / "DeepSeek-V4-Flash");
  EXPECT_EQ(flash->ratio(0), 0);
  EXPECT_EQ(flash->ratio(1), 0);
  EXPECT_EQ(load_model_config(configs / "DeepSeek-V4-Pro")->ratio(0), 128);
  EXPECT_EQ(load_model_config(configs / "DeepSeek-V4-Flash-0731")->dspark_noise_token_id, 128799);
}

// The convention is named in config.json, in hf_quant_config.json and in the first revision's layout of the
// latter.
TEST(RealConfigs, Nvfp4ConventionsAreRecognised) {
  PIVOT_NEED_DATA(configs, "real/configs");
  const std::string plain = *read_file(configs / "DeepSeek-V4-Flash" / "config.json");
  EXPECT_FALSE(parse_quantization(plain, "", "config.json")->convention.has_value());
  const auto nvidia = configs / "nvidia-DeepSeek-V4-Flash-NVFP4";
  const auto merged = parse_quantization(*read_file(nvidia / "config.json"), "", "config.json");
  EXPECT_EQ(merged->convention, Nvfp4Convention::kModelOpt);
  EXPECT_EQ(merged->quant_method, "fp8");
  for (const char* file : {"hf_quant_config.json", "hf_quant_config.early-layout.json.gz"}) {
    SCOPED_TRACE(file);
    const auto text = read_maybe_gzip(nvidia / file);
    ASSERT_TRUE(text.has_value()) << text.error().to_string();
    const auto facts = parse_quantization(plain, *text, "config.json");
    ASSERT_TRUE(facts.has_value()) << facts.error().to_string();
    EXPECT_EQ(facts->convention, Nvfp4Convention::kModelOpt);
  }
  const auto contradiction =
      parse_quantization(R"({"quantization_config":{"quant_method":"compressed-tensors"}})",
                         *read_file(nvidia / "hf_quant_config.json"), "config.json");
  ASSERT_FALSE(contradiction.has_value());
  expect_mentions(contradiction.error().message, {"compressed-tensors", "ModelOpt", "contradict"});
}

TEST(RealConfigs, EveryOtherConfigIsRefusedInOneSentence) {
  PIVOT_NEED_DATA(configs, "real/configs");
  const std::pair<const char*, const char*> cases[] = {
      {"DeepSeek-V4.1-Flash", "DeepSeek-V4.1"},
      {"nvidia-DeepSeek-V4.1-Flash-NVFP4", "DeepSeek-V4.1"},
      {"refuse/DeepSeek-V2-Lite", "DeepSeek-V2"},
      {"refuse/DeepSeek-V3.2", "DeepSeek-V3.2"},
      {"refuse/Qwen3-30B-A3B", "Qwen3-MoE"},
      {"refuse/gpt-oss-120b", "gpt-oss"},
      {"DeepSeek-V4-Flash/inference", "inference code"},
      {"DeepSeek-V4.1-Flash/inference", ""},
  };
  for (const auto& [folder, name] : cases) {
    SCOPED_TRACE(folder);
    const auto config = load_model_config(configs / folder);
    ASSERT_FALSE(config.has_value());
    EXPECT_EQ(config.error().code, ErrorCode::kUnsupported);
    expect_mentions(config.error().message, {name});
    EXPECT_EQ(config.error().message.find('\n'), std::string::npos);
  }
}

TEST(FlashConfig, IsThePublishedOne) {
  PIVOT_NEED_DATA(configs, "real/configs");
  const auto path = configs / "DeepSeek-V4-Flash" / "config.json";
  const auto published = parse_model_config(*read_file(path), path.string());
  ASSERT_TRUE(published) << published.error().to_string();
  const auto shapes = [](const ModelConfig& c) {
    return std::make_tuple(c.vocab_size, c.hidden_size, c.num_hidden_layers, c.compress_ratios,
                           c.num_attention_heads, c.head_dim, c.qk_rope_head_dim, c.q_lora_rank, c.o_groups,
                           c.o_lora_rank, c.sliding_window, c.max_position_embeddings, c.index_n_heads,
                           c.index_head_dim, c.index_topk, c.n_routed_experts, c.num_experts_per_tok,
                           c.n_shared_experts, c.moe_intermediate_size, c.num_hash_layers, c.hc_mult);
  };
  const auto values = [](const ModelConfig& c) {
    return std::make_tuple(c.rope_main.theta, c.rope_main.factor, c.rope_compress.theta,
                           c.rope_compress.factor, c.rope_compress.original_max_position_embeddings,
                           c.rope_compress.beta_fast, c.rope_compress.beta_slow, c.norm_topk_prob,
                           c.routed_scaling_factor, c.swiglu_limit, c.hc_sinkhorn_iters, c.hc_eps,
                           c.rms_norm_eps, c.bos_token_id, c.eos_token_id, c.expert_dtype);
  };
  EXPECT_EQ(shapes(flash_config()), shapes(*published));
  EXPECT_EQ(values(flash_config()), values(*published));
  EXPECT_EQ(flash_config(5).compress_ratios, (std::vector<int>{0, 0, 4, 128, 4}));
}

}  // namespace
}  // namespace pivot
