// Host kernels and the Client: programs from the disk find them, their errors are the program's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "forebay/base/status.h"
#include "forebay/xla/client.h"
#include "forebay/xla/custom_call.h"
#include "forebay/xla/graph.h"
#include "forebay/xla/host_kernel.h"
#include "forebay/xla/ops.h"
#include "forebay/xla/pjrt/client_testing.h"

namespace forebay::xla {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Status Scale(const HostCall& call) {
  for (int64_t i = 0; i < call.operands()[0].dims[0]; ++i) {
    call.results()[0].as<float>()[i] =
        static_cast<float>(call.number("factor")) * call.operands()[0].as<float>()[i];
  }
  return OkStatus();
}

Status AlwaysFails(const HostCall& call) {
  *call.results()[0].as<float>() = 0;
  return DataLoss("the kernel did not like it");
}

Program CallingProgram(const HostKernel& kernel) {
  Graph graph("calling");
  const Value xs[] = {graph.Parameter(kVector, "x")};
  // Two calls of one kernel: it is listed once.
  const Value once = CallHost(kernel, xs, {.results = {kVector}, .numbers = {{"factor", 5}}})[0];
  const Value again[] = {once};
  const Values twice = CallHost(kernel, again, {.results = {kVector}, .numbers = {{"factor", 2}}});
  const Result<Program> program = graph.Finish(twice);
  EXPECT_TRUE(program.ok()) << program.status().ToString();
  EXPECT_EQ(program->host_kernels.size(), 1u);
  return *program;
}

TEST(HostKernelCache, ProgramsFromTheDiskFindTheirKernels) {
  const TemporaryFolder folder;
  const HostKernel kernel = MakeHostKernel<Scale>("test_scale");
  for (int run = 0; run < 2; ++run) {
    const auto client = MakeClient({.cache_dir = folder.path() / "programs"});
    const auto program = client->Compile(CallingProgram(kernel));
    ASSERT_TRUE(program.ok()) << program.status().ToString();
    EXPECT_EQ(client->counters().disk_hits, run);
    Buffer x = Vector(*client, {1, 2, 3, 4});
    EXPECT_THAT(Floats(Call(**program, {&x}).value()[0]), ElementsAre(10, 20, 30, 40));
  }
}

TEST(HostKernelCache, ItsErrorIsTheProgramsError) {
  const auto client = MakeClient();
  const auto program = client->Compile(CallingProgram(MakeHostKernel<AlwaysFails>("test_fails")));
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  Buffer x = Vector(*client, {1, 2, 3, 4});
  const auto results = Call(**program, {&x});
  const Status status = results.ok() ? (*results)[0].Await() : results.status();
  EXPECT_THAT(status.ToString(), HasSubstr("the kernel did not like it"));
}

TEST(HostKernelCache, ANameHasOneFunction) {
  const auto client = MakeClient();
  ASSERT_TRUE(client->Compile(CallingProgram(MakeHostKernel<Scale>("test_twice"))).ok());
  const auto other = client->Compile(CallingProgram(MakeHostKernel<AlwaysFails>("test_twice")));
  EXPECT_EQ(other.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(other.status().message(), HasSubstr("two host kernels are named 'test_twice'"));
}

}  // namespace
}  // namespace forebay::xla
