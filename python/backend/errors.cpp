#include "python/backend/errors.h"

#include <c10/util/Exception.h>

#include "lockstep/core/error.h"

namespace lockstep::torch_backend {

std::exception_ptr as_torch_error(const std::exception_ptr& error) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)};
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error&) {
    return error;
  } catch (const InvalidArgument& invalid) {
    return std::make_exception_ptr(c10::Error(here, std::string("lockstep: ") + invalid.what()));
  } catch (const TimeoutError& late) {
    return std::make_exception_ptr(
        c10::DistBackendError(here, std::string("lockstep: the timeout is over: ") + late.what()));
  } catch (const Error& failure) {
    return std::make_exception_ptr(c10::DistBackendError(here, std::string("lockstep: ") + failure.what()));
  } catch (...) {
    return error;
  }
}

void refuse(const char* call, int rank, const std::string& why) {
  C10_THROW_ERROR(Error, std::string("lockstep: ") + call + " on rank " + std::to_string(rank) + ": " + why);
}

}  // namespace lockstep::torch_backend
