// pivot demo: hide a fact in a book, ask for it, and show whether the indexer's selection had it.
//
// The selection is compared with that of a bf16 index (no FP4 rounding of index queries and keys) on the same
// tokens, at the positions from which the value was predicted. In the first indexer layer the activations of
// both runs are the same bits; in later ones they differ by what the other selection changed.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "base/installation.h"
#include "command.h"
#include "inputs.h"
#include "model_options.h"
#include "needle_story.h"
#include "results.h"
#include "selection_probe.h"
#include "terminal.h"

namespace pivot::cli {
namespace {

struct DemoCommand {
  ModelOptions model;
  std::string text;
  std::int64_t tokens = 6000;
  double depth = -1;
  std::optional<std::uint64_t> seed;
  bool json = false;
};

constexpr int kWrongAnswerExit = 1;
constexpr std::int64_t kAnswerTokens = 48;

struct LayerFidelity {
  std::int32_t layer = 0;
  bool kept_fact =
      false;           // the fact's entry was selected at every position from which the value was predicted
  double overlap = 0;  // mean share of a bf16 index's selection that was selected, over these positions
  std::size_t entries = 0;  // selected at one position
};

// Half-open: positions (rows of the forward pass) from which the tokens of the value are predicted.
struct Positions {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

GenerateOptions greedy_options(const OpenModel& model, ProgressBar& bar) {
  GenerateOptions options;
  options.max_new_tokens = kAnswerTokens;
  options.stop_tokens = model.stop_tokens();
  options.on_prefill = [&bar](std::int64_t done, std::int64_t total) {
    done < total ? bar.update(done, total) : bar.clear();
  };
  options.cancel = &InterruptScope::flag();
  return options;
}

// The index in `ids` of the first occurrence of `part`; ids.size() where there is none.
std::size_t find_tokens(const std::vector<TokenId>& ids, const std::vector<TokenId>& part) {
  return static_cast<std::size_t>(std::search(ids.begin(), ids.end(), part.begin(), part.end()) -
                                  ids.begin());
}

Result<std::vector<LayerFidelity>> measure_fidelity(const DemoCommand& command, const OpenModel& model,
                                                    std::vector<TokenId> sequence, Positions positions,
                                                    std::int64_t fact_entry, const SelectionProbe& shipped) {
  OpenModel full;  // not a copy: a tokenizer has one owner, and a session needs none
  full.weights = model.weights;
  full.backend = model.backend;
  full.knobs = model.knobs;
  full.knobs.index_keys = IndexPrecision::kBf16;
  sequence.resize(static_cast<std::size_t>(positions.end));
  PIVOT_TRY(const auto session, open_session(full, command.model, positions.end));
  SelectionProbe oracle(positions.begin);
  session->set_taps(&oracle);
  ProgressBar bar("checking the selection", ProgressBar::Unit::kTokens);
  PIVOT_TRY_VOID(session->prefill(
      sequence, [&bar](std::int64_t done, std::int64_t total) { bar.update(done, total); },
      &InterruptScope::flag()));

  std::vector<LayerFidelity> layers;
  for (const auto& [layer, by_position] : shipped.selections()) {
    LayerFidelity fidelity{.layer = layer, .kept_fact = true};
    const auto& wanted = oracle.selections().at(layer);
    for (std::int64_t position = positions.begin; position < positions.end; ++position) {
      const Selection& selection = by_position.at(position);
      // The value's two tokens lie in this entry or in it and the next.
      fidelity.kept_fact &= std::any_of(selection.begin(), selection.end(), [&](std::int32_t entry) {
        return entry == fact_entry || entry == fact_entry + 1;
      });
      fidelity.overlap += overlap(selection, wanted.at(position));
      fidelity.entries = std::max(fidelity.entries, selection.size());
    }
    fidelity.overlap /= static_cast<double>(positions.end - positions.begin);
    layers.push_back(fidelity);
  }
  return layers;
}

void print_report(const DemoCommand& command, const OpenModel& model, const Story& story,
                  const std::string& answer, bool right, const GenerationResult& result,
                  const std::vector<LayerFidelity>& layers, std::int64_t fact_position) {
  const Style style = style_for(STDOUT_FILENO);
  std::string out;
  const auto line = [&](std::string_view name, const std::string& text) {
    out += fmt::format("{}{:<9}{} {}\n", style.dim, name, style.reset, text);
  };
  const ModelConfig& config = model.weights->config;
  line("Model", fmt::format("{}: {} layers of the DeepSeek-V4 architecture, on {}", command.model.model,
                            config.num_hidden_layers, model.device));
  line("Text",
       fmt::format("{} verses, {} tokens", story.num_verses, format_count(result.timings.prompt_tokens)));
  line("Hidden", fmt::format("at token {} ({:.0f} %): \"{}\", among {} decoys", format_count(fact_position),
                             100 * story.depth, story.needle, story.num_decoys));
  line("Asked", story.question);
  line("Answer", fmt::format("{}{}{}  {}", style.bold, printable(answer), style.reset,
                             right ? fmt::format("{}right{}", style.green, style.reset)
                                   : fmt::format("WRONG: the value was {}", story.value)));
  line("Speed", statistics_line(result.timings, result.reason));
  for (const LayerFidelity& layer : layers) {
    line("Index", fmt::format("layer {}: {:.1f} % of the {} entries that a full-precision index selects; {}",
                              layer.layer, 100 * layer.overlap, layer.entries,
                              layer.kept_fact ? "the fact's entry was selected"
                                              : "the fact's entry was not selected"));
  }
  if (layers.empty()) line("Index", "nothing was left out: every visible entry was attended to");
  (void)write_output(out);
}

nlohmann::ordered_json as_json(const DemoCommand& command, const OpenModel& model, const Story& story,
                               const std::string& answer, bool right, const GenerationResult& result,
                               const std::vector<LayerFidelity>& layers, std::int64_t fact_position) {
  nlohmann::ordered_json json;
  json["model"] = command.model.model;
  json["device"] = model.device;
  json["knobs"] = describe(model.knobs);
  json["seed"] = *command.seed;
  json["prompt_tokens"] = result.timings.prompt_tokens;
  json["fact"] = {
      {"text", story.needle}, {"token", fact_position}, {"depth", story.depth}, {"decoys", story.num_decoys}};
  json["question"] = story.question;
  json["answer"] = answer;
  json["right"] = right;
  json["timings"] = timings_json(result.timings, model.load_seconds);
  json["index_fidelity"] = nlohmann::ordered_json::array();
  for (const LayerFidelity& layer : layers) {
    json["index_fidelity"].push_back({{"layer", layer.layer},
                                      {"overlap", layer.overlap},
                                      {"entries", layer.entries},
                                      {"fact_selected", layer.kept_fact}});
  }
  return json;
}

Result<int> run(DemoCommand& command) {
  PIVOT_TRY(const std::filesystem::path default_text, shared_file("texts/hebrews.txt"));
  PIVOT_TRY(const std::string book, read_text(command.text.empty() ? default_text.string() : command.text));
  if (!command.seed) command.seed = std::random_device{}();
  PIVOT_TRY(const OpenModel model, open_model(command.model, /*wants_tokenizer=*/true));
  const Tokenizer& tokenizer = *model.tokenizer;
  PIVOT_TRY(const Story story,
            tell_story(book, {.seed = *command.seed, .prompt_tokens = command.tokens, .depth = command.depth},
                       [&tokenizer](std::string_view text) {
                         return static_cast<std::int64_t>(tokenizer.encode(text).size());
                       }));
  Conversation conversation;
  conversation.messages.push_back(ChatMessage::text(ChatRole::kUser, story.prompt));
  ChatOptions chat;
  chat.thinking = ThinkingMode::kChat;
  PIVOT_TRY(const std::string prompt_text, encode_chat(conversation, chat));
  const std::vector<TokenId> prompt = tokenizer.encode(prompt_text);
  const std::vector<TokenId> value = tokenizer.encode(story.value);
  const auto fact_position = static_cast<std::int64_t>(find_tokens(prompt, value));

  // The answer's opening is fixed by the training; the value's tokens are predicted from the positions before
  // theirs.
  const auto opening = static_cast<std::int64_t>(tokenizer.encode(story.answer_opening).size());
  Positions positions;
  positions.begin = static_cast<std::int64_t>(prompt.size()) + opening - 1;
  positions.end = positions.begin + static_cast<std::int64_t>(value.size());

  PIVOT_TRY(const auto session,
            open_session(model, command.model, static_cast<std::int64_t>(prompt.size()) + kAnswerTokens));
  const InterruptScope interrupts;
  ProgressBar bar("reading", ProgressBar::Unit::kTokens);
  SelectionProbe probe(positions.begin);
  session->set_taps(&probe);
  PIVOT_TRY(const GenerationResult result, session->generate(prompt, greedy_options(model, bar)));
  bar.clear();
  if (result.reason == FinishReason::kCancelled) return fail(ErrorCode::kCancelled, "stopped");

  std::vector<TokenId> sequence = prompt;
  for (const SampledToken& token : result.tokens) sequence.push_back(token.id);
  const std::string answer =
      tokenizer.decode(std::span<const TokenId>(sequence).subspan(prompt.size()), /*skip_special=*/true);
  const bool right = value_in_answer(answer, story.answer_opening) == story.value;
  std::vector<LayerFidelity> layers;
  // A short answer has no such positions, and a short prompt leaves nothing to choose.
  const bool has_value = static_cast<std::int64_t>(sequence.size()) > positions.end;
  if (has_value && !probe.selections().empty()) {
    PIVOT_TRY(layers, measure_fidelity(command, model, sequence, positions, fact_position / 4, probe));
  }
  if (command.json) {
    const auto json = as_json(command, model, story, answer, right, result, layers, fact_position);
    PIVOT_TRY_VOID(write_output(json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"));
  } else {
    print_report(command, model, story, answer, right, result, layers, fact_position);
  }
  return right ? 0 : kWrongAnswerExit;
}

}  // namespace

Run add_demo(CLI::App& app) {
  auto command = std::make_shared<DemoCommand>();
  add_model_options(app, command->model);
  command->model.model = kEmbeddedModelName;
  app.get_option("MODEL")->required(false)->capture_default_str();
  app.add_option("--text", command->text, "Another book, one verse or sentence a line")->type_name("FILE");
  app.add_option("--tokens", command->tokens, "Longest prompt")->capture_default_str();
  app.add_option("--depth", command->depth, "Place of the fact, 0 (start) to 1 (end); drawn unless given");
  app.add_option("--seed", command->seed, "Of the fact, its place and the decoys; drawn unless given");
  app.add_flag("--json", command->json, "Print one JSON object instead of the report");
  return [command] { return run(*command); };
}

}  // namespace pivot::cli
