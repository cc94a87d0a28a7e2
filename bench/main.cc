// forebay-bench NAME [--quick] [--json]: one benchmark; docs in bench/benchmarks.h.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "apps/commands.h"
#include "bench/benchmarks.h"
#include "bench/buffer_engine_forebay.h"
#include "bench/harness.h"
#include "bench/publish_server.h"
#include "bench/recovery_roles.h"
#include "forebay/base/status.h"

namespace forebay::bench {
namespace {

struct Benchmark {
  const char* name;
  const char* what;
  Result<nlohmann::ordered_json> (*run)(const BenchOptions&);
};

constexpr Benchmark kBenchmarks[] = {
    {"actors", "10,000 episodes at once: memory of each, how late they wake up", ActorsBench},
    {"buffer", "the buffer against its peers (bench/peers/setup_buffer.sh) and the disk alone",
     BufferBench},
    {"learner", "one optimizer step of SmolLM2-135M against the same step in JAX", LearnerBench},
    {"packing", "packed against padded rows, log-normal lengths, in at most 8 compiled shapes",
     PackingBench},
    {"publish", "new weights to the first token sampled with them, beside 16 running streams",
     PublishBench},
    {"recovery", "200 kills of writers, buffer server and learner: what is lost or trained twice",
     RecoveryBench},
    {"rollout",
     "SmolLM2-135M decoding at 1, 16 and 32 streams against vLLM and llama.cpp, and prompts",
     RolloutBench},
    {"scale", "how cost grows with actors, episode length, model, its layers and devices",
     ScaleBench},
    {"startup", "opening a buffer of 10 million records after a crash (21 GB of disk)",
     StartupBench},
    {"utilization", "the synchronous loop against the decoupled one on a slow environment",
     UtilizationBench},
};

// Nested objects become dotted names.
void PrintFields(const nlohmann::ordered_json& fields, const std::string& prefix) {
  for (const auto& [key, value] : fields.items()) {
    if (value.is_object()) {
      PrintFields(value, prefix + key + ".");
    } else {
      std::printf("%-36s %s\n", (prefix + key).c_str(), value.dump().c_str());
    }
  }
}

Status Run(const std::string& name, const BenchOptions& options) {
  if (name == "list") {
    for (const Benchmark& b : kBenchmarks) std::printf("%-12s %s\n", b.name, b.what);
    return OkStatus();
  }
  for (const Benchmark& b : kBenchmarks) {
    if (name != b.name) continue;
    FB_ASSIGN_OR_RETURN(const nlohmann::ordered_json fields, b.run(options));
    if (options.json) {
      std::printf("%s\n", fields.dump().c_str());
    } else {
      PrintFields(fields, "");
    }
    // A part is for the one who asked, not for the history.
    return options.only.empty() ? AppendHistory(name, options, fields) : OkStatus();
  }
  return InvalidArgument("there is no benchmark '" + name + "'; `forebay-bench list` names them");
}

int Main(int argc, char** argv) {
  // What the buffer's benchmark starts as its child.
  if (argc == 5 && std::string_view(argv[1]) == "serve-buffer") {
    const Status status = ServeBuffer(argv[2], argv[3], argv[4]);
    std::fprintf(stderr, "forebay-bench: %s\n", status.message().c_str());
    return apps::ExitCode(status);
  }
  CLI::App app("Forebay's benchmarks", "forebay-bench");
  std::string name;
  BenchOptions options;
  app.add_option("name", name, "a benchmark, or list")->required();
  app.add_flag("--quick", options.quick, "fewer repeats: within 60 s on 2 cores");
  app.add_flag("--json", options.json, "the last line of stdout is one JSON object");
  app.add_option("--only", options.only, "buffer: only what has this in its name, and the disk");
  app.add_option("--records", options.records, "startup: records (default: 10 million)")
      ->check(CLI::PositiveNumber);
  app.add_option("--dump", options.dump, "write the StableHLO of what is measured to this folder");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const Status status = Run(name, options);
  if (!status.ok()) std::fprintf(stderr, "forebay-bench: %s\n", status.message().c_str());
  return apps::ExitCode(status);
}

}  // namespace
}  // namespace forebay::bench

int main(int argc, char** argv) {
  // A part of a benchmark that kills its parts.
  if (argc > 1 && std::string_view(argv[1]) == forebay::bench::kRecoveryRoleWord) {
    return forebay::bench::RunRecoveryRole(argc, argv);
  }
  if (argc > 1 && std::string_view(argv[1]) == forebay::bench::kPublishServerWord) {
    return forebay::bench::RunPublishServer();
  }
  return forebay::bench::Main(argc, argv);
}
