// Linked to a library that cannot be found when it is loaded.
extern "C" int something_else();
extern "C" __attribute__((visibility("default"))) int needs_cudnn() { return something_else(); }
