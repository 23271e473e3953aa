// A process without LibTorch: prints the hash of our convolution.
#include <cstdio>

#include "tests/torch/our_convolution.h"

int main() { std::printf("hash %s\n", lockstep::testing::hash_of_our_convolution().c_str()); }
