// Python's lock (the GIL), which PyTorch's bindings keep in some calls, such as get_future() and synchronize(). Whoever
// holds it must not wait for this package's threads or mutexes: another thread may need it, because dropping the last
// reference to a tensor takes it.
#pragma once

#include <Python.h>

namespace lockstep::torch_backend {

// Gives the lock up while it lives, if this thread holds it.
class WithoutPythonLock {
 public:
  WithoutPythonLock() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutPythonLock() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  WithoutPythonLock(const WithoutPythonLock&) = delete;
  WithoutPythonLock& operator=(const WithoutPythonLock&) = delete;

 private:
  PyThreadState* const state_;
};

}  // namespace lockstep::torch_backend
