// A shared library that is not Lockstep's CUDA part.
extern "C" __attribute__((visibility("default"))) int something_else() { return 1; }
