// llama.cpp as a peer of `forebay-bench rollout`: decodes S streams at a time.
//
//   llamacpp_decode MODEL.gguf F16.gguf THREADS STREAMS_MAX CONTEXT
//
// Writes F16.gguf, MODEL in f16, if it is not there. Then answers each line "STREAMS PROMPT NEW"
// with the seconds that NEW decode steps of STREAMS streams took, after prompts of PROMPT tokens
// each that are not counted. As in llama.cpp's own batched-bench nothing is sampled: the logits of
// every step are there, the next tokens are made up.
//
// Not part of the build: bench/peers/setup_rollout.sh compiles it beside llama.cpp.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "llama.h"

namespace {

struct Decoder {
  llama_context* context;
  llama_batch batch;
  int32_t vocab;

  void Clear() { batch.n_tokens = 0; }
  void Add(int32_t position, int32_t stream, bool logits) {
    const int32_t i = batch.n_tokens++;
    batch.token[i] = static_cast<llama_token>((1000 + 7919LL * position + 31LL * stream) % vocab);
    batch.pos[i] = position;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = stream;
    batch.logits[i] = logits ? 1 : 0;
  }
  bool Run() { return llama_decode(context, batch) == 0; }
};

bool Exists(const char* path) {
  std::FILE* file = std::fopen(path, "rb");
  if (file != nullptr) std::fclose(file);
  return file != nullptr;
}

double Decode(Decoder& decoder, int streams, int prompt, int steps) {
  llama_memory_clear(llama_get_memory(decoder.context), true);
  for (int stream = 0; stream < streams; ++stream) {
    decoder.Clear();
    for (int i = 0; i < prompt; ++i) decoder.Add(i, stream, i + 1 == prompt);
    if (!decoder.Run()) return -1;
  }
  llama_synchronize(decoder.context);
  const auto began = std::chrono::steady_clock::now();
  for (int step = 0; step < steps; ++step) {
    decoder.Clear();
    for (int stream = 0; stream < streams; ++stream) decoder.Add(prompt + step, stream, true);
    if (!decoder.Run()) return -1;
    // As whoever samples would: waits for the logits.
    for (int stream = 0; stream < streams; ++stream) {
      if (llama_get_logits_ith(decoder.context, stream) == nullptr) return -1;
    }
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  if (!Exists(argv[2])) {
    llama_model_quantize_params params = llama_model_quantize_default_params();
    params.ftype = LLAMA_FTYPE_MOSTLY_F16;
    params.allow_requantize = true;
    const std::string aside = std::string(argv[2]) + ".tmp";
    if (llama_model_quantize(argv[1], aside.c_str(), &params) != 0) return 3;
    if (std::rename(aside.c_str(), argv[2]) != 0) return 3;
  }
  llama_model* model = llama_model_load_from_file(argv[2], llama_model_default_params());
  if (model == nullptr) return 4;
  const int threads = std::atoi(argv[3]), streams_max = std::atoi(argv[4]);
  const int context = std::atoi(argv[5]);
  // One context a number of streams, as a server that is started for that many would have.
  Decoder decoder = {nullptr, llama_batch_init(2048, 0, 1),
                     llama_vocab_n_tokens(llama_model_get_vocab(model))};
  int made_for = 0;
  std::printf("ready\n");
  std::fflush(stdout);
  int streams = 0, prompt = 0, steps = 0;
  while (std::scanf("%d %d %d", &streams, &prompt, &steps) == 3) {
    if (streams < 1 || streams > streams_max || prompt + steps > context) return 5;
    if (made_for != streams) {
      if (decoder.context != nullptr) llama_free(decoder.context);
      llama_context_params params = llama_context_default_params();
      params.n_ctx = static_cast<uint32_t>(context * streams);
      params.n_batch = 2048;
      params.n_ubatch = 512;
      params.n_seq_max = static_cast<uint32_t>(streams);
      params.n_threads = threads;
      params.n_threads_batch = threads;
      decoder.context = llama_init_from_model(model, params);
      if (decoder.context == nullptr) return 6;
      made_for = streams;
      if (Decode(decoder, streams, prompt, 2) < 0) return 7;  // the first steps allocate
    }
    std::printf("%.9f\n", Decode(decoder, streams, prompt, steps));
    std::fflush(stdout);
  }
  return 0;
}
