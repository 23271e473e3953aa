// A build without oneDNN logs that products are slow: once, when a call takes long. The test puts the entries into a
// table, so that any build tests them.
#include <gtest/gtest.h>
#include <stdlib.h>

#include "kernels/cpu/cpu_table.h"
#include "lockstep/tensor/tensor.h"
#include "tests/support/log_lines.h"

namespace lockstep::testing {
namespace {

class SlowProducts : public ::testing::Test {
 protected:
  void SetUp() override {
    unsetenv("LOCAL_RANK");
    log_slow_products(table_);
  }
  void TearDown() override { unsetenv("LOCAL_RANK"); }
  // y (rows, 1024) from x (rows, 1024).
  void multiply(std::int64_t rows) {
    const Tensor x = Tensor::full({rows, 1024}, 1), weight = Tensor::full({1024, 1024}, 1),
                 y = Tensor::zeros({rows, 1024});
    table_.linear(x, weight, {}, false, y, cpu_device().default_stream());
    EXPECT_EQ(y.data<float>()[0], 1024);
  }

  KernelTable table_ = reference_kernels();
};

TEST_F(SlowProducts, AreToldOnceWithTheRemedy) {
  const LogLines log;
  multiply(1);
  EXPECT_EQ(log.text(), "") << "small products are fast enough";
  multiply(16);
  EXPECT_NE(log.text().find("this build has no oneDNN; install libdnnl-dev"), std::string::npos) << log.text();
  const std::string once = log.text();
  multiply(16);
  EXPECT_EQ(log.text(), once);
}

TEST_F(SlowProducts, AreToldByOneRankAMachine) {
  setenv("LOCAL_RANK", "1", 1);
  const LogLines log;
  multiply(16);
  EXPECT_EQ(log.text(), "");
}

TEST_F(SlowProducts, AreConvolutionsAndProductsOfBatchesToo) {
  const LogLines log;
  const Tensor a = Tensor::full({4, 128, 128}, 1), b = Tensor::full({4, 128, 256}, 1), c = Tensor::zeros({4, 128, 256});
  table_.matmul(a, false, b, false, c, cpu_device().default_stream());
  EXPECT_NE(log.text(), "");
  EXPECT_EQ(c.data<float>()[0], 128);

  log_slow_products(table_);
  const std::string before = log.text();
  const Conv2dShape shape{1, 64, 64, 16, 64, 64, 32, 3, 3, 1, 1, 1, 1, 1, 1};
  const Tensor x = Tensor::full({1, 64, 64, 16}, 1), weight = Tensor::full({32, 3, 3, 16}, 1),
               y = Tensor::zeros({1, 64, 64, 32});
  table_.conv2d(shape, x, weight, {}, false, y, cpu_device().default_stream());
  EXPECT_NE(log.text(), before);
  EXPECT_EQ(y.data<float>()[0], 2 * 2 * 16);
}

}  // namespace
}  // namespace lockstep::testing
