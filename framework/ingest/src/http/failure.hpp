// SPDX-License-Identifier: Apache-2.0
//
// What goes wrong with an object, in words that name its URL, and whether another attempt may go better. Pure.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include <gpurx/error.hpp>

#include "../net/message.hpp"
#include "../net/retry.hpp"
#include "../net/url.hpp"

namespace gpurx::ingest::detail {

// What the server said may be in it.
[[nodiscard]] diagnostics words_for(url const& from, std::string_view advice);

[[noreturn]] void fail(error_code code, url const& from, std::string_view advice);

// A failure of one attempt, with the object's URL; thrown on if no other attempt could go better.
[[nodiscard]] passing_error passing(system_error const& failure, url const& from);

// What a server says with a status that is no success; `body` is the beginning of its answer's.
[[nodiscard]] std::string refusal_text(answer const& head, std::string_view body);

// It has served the object before, so that not the object is refused, but the URL that was signed for a while, or
// credentials that have ended. From where it was found first it may be had once more.
class later_refusal : public system_error {
  public:
    using system_error::system_error;
};

// What a server says for the moment, or for good.
[[noreturn]] void refused(answer const& head, diagnostics const& why);

// No failure of a connection, whatever its code: no other attempt would go better.
struct consumer_failure : std::exception {
    // NOLINTNEXTLINE(bugprone-throw-keyword-missing): the pointer is kept, not thrown
    explicit consumer_failure(std::exception_ptr failure) noexcept : why{std::move(failure)} {}

    std::exception_ptr why;
};

}  // namespace gpurx::ingest::detail
