// The recipe `classic`: TensorFlow's multi-tower tutorial.
#pragma once

// Reads its command line and trains. Returns the exit code.
int run_classic(int argc, char** argv);
