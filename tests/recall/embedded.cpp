#include "recall/embedded.h"

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/load.h"
#include "engine/devices.h"
#include "recall/haystack.h"
#include "support/embedded_model.h"
#include "support/test_data.h"
#include "text/tokenizer/tokenizer.h"

namespace pivot::recall {

std::shared_ptr<const ModelWeights> embedded_weights() {
  static const std::shared_ptr<const ModelWeights> weights =
      load_model(Checkpoint::open(test::embedded_model_dir().string()).value(), LoadOptions{}).value();
  return weights;
}

const Tokenizer& embedded_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(test::embedded_model_dir()).value();
  return tokenizer;
}

std::vector<Case> embedded_cases(const Grid& grid) {
  static const Haystack haystack =
      Haystack::create(read_file(test::source_dir() / "models/texts/hebrews.txt").value(),
                       embedded_tokenizer())
          .value();
  const CaseBuilder builder{&embedded_tokenizer(), &haystack, Wording::kNeedle};
  std::vector<Case> cases;
  for (const CaseSpec& spec : grid.specs()) cases.push_back(builder.build(spec).value());
  return cases;
}

AttributionSubject embedded_subject() {
  AttributionSubject subject;
  subject.weights = embedded_weights();
  subject.backend = make_backend("cpu", 2).value();
  subject.tokenizer = &embedded_tokenizer();
  subject.stop_tokens = {TokenId{static_cast<std::int32_t>(subject.weights->config.eos_token_id)}};
  subject.num_threads = 2;
  return subject;
}

}  // namespace pivot::recall
