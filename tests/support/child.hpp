// SPDX-License-Identifier: Apache-2.0
//
// A part of a test that runs in a forked child. Catch2's assertions are the parent's: the child tells what it found.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <csignal>
#include <exception>
#include <string>

#include "base/syscalls.hpp"

namespace gpurx::test {

class child_report {
  public:
    void expect(bool holds, char const* what)
    {
        if (!holds)
            text_ += std::string{"not so: "} + what + '\n';
    }
    [[nodiscard]] std::string const& text() const noexcept { return text_; }

  private:
    std::string text_;
};

// Runs body(child_report&) in a child that ends right after it, without destructors of the parent's. Returns what the
// child found wrong, and how it ended if that was not by itself within `seconds`.
template <class Body>
[[nodiscard]] std::string in_child(Body&& body, unsigned seconds = 60)
{
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    detail::unique_fd const reads{ends[0]};
    detail::unique_fd writes{ends[1]};
    auto const pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        ::signal(SIGALRM, SIG_DFL);
        ::alarm(seconds);
        child_report report;
        try {
            body(report);
        } catch (std::exception const& failure) {
            report.expect(false, failure.what());
        }
        auto const& text = report.text();
        auto const written = ::write(writes.get(), text.data(), text.size());
        ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
    }
    writes.reset();
    std::string text;
    char part[512];
    for (ssize_t count = 0; (count = ::read(reads.get(), part, sizeof part)) > 0;)
        text.append(part, static_cast<std::size_t>(count));
    int status = 0;
    REQUIRE(::waitpid(pid, &status, 0) == pid);
    if (WIFSIGNALED(status))
        text += "ended by signal " + std::to_string(WTERMSIG(status)) +
                (WTERMSIG(status) == SIGALRM ? ": it stood still\n" : "\n");
    else if (WEXITSTATUS(status) != 0)
        text += "ended with status " + std::to_string(WEXITSTATUS(status)) + '\n';
    return text;
}

}  // namespace gpurx::test
