// SPDX-License-Identifier: Apache-2.0
//
// A log of the system calls that open a socket, in the form of strace, for where that is not installed. It takes the
// place of the C library's functions in the program that it is linked to.
#pragma once

namespace bench {

// Lines `trace CALL(ARGUMENTS) = RESULT` on standard output, of socket(), setsockopt() and bind(), while it lives.
class call_log {
  public:
    call_log() noexcept;
    call_log(call_log const&) = delete;
    call_log& operator=(call_log const&) = delete;
    ~call_log();
};

}  // namespace bench
