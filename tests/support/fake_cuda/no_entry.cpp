// A shared library, but no CUDA part of Lockstep.
extern "C" __attribute__((visibility("default"))) int something_else() { return 1; }
