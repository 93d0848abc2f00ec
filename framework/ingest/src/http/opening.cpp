// SPDX-License-Identifier: Apache-2.0
#include "opening.hpp"

#include <gpurx/ingest/error.hpp>
#include <string>
#include <utility>

#include "failure.hpp"

namespace gpurx::ingest::detail {

namespace {

// `before`: the answer to HEAD. What it says holds for the object that is received.
opened_object opened(first_answer const& found, answer const& head, answer const& before)
{
    auto const same = before.status == 200 && !head.etag.empty() && before.etag == head.etag;
    return {.object = found.object,
            .serves_ranges = found.serves_ranges,
            .crc32c = !head.crc32c && same ? before.crc32c : head.crc32c,
            .crc64nvme = !head.crc64nvme && same ? before.crc64nvme : head.crc64nvme};
}

}  // namespace

asio::awaitable<opened_object> opening::async_open()
{
    for (;;) {
        if (auto found = co_await attempt())
            co_return std::move(*found);
        by_.drop();
    }
}

asio::awaitable<std::optional<opened_object>> opening::attempt()
{
    co_await from_.async_locate(by_.executor());
    co_await by_.async_connect();
    auto const checksum_request = from_.ask_for_checksum();
    if (!checksum_request.empty()) {
        ++context_.counters.requests;
        co_await by_.on()->async_send(checksum_request);
    }
    byte_range const asked{0, what_.asks_for_range ? size_ : 0};
    // Not made in the call: GCC 12 destroys such an argument of a coroutine twice.
    pending_request first{.asked = asked, .answer = {}, .wanted = {}};
    co_await by_.async_ask(std::move(first));
    answer before;
    if (!checksum_request.empty())
        before = co_await by_.on()->async_answer();
    if (!before.keep_alive)
        co_return std::nullopt;
    auto const head = co_await by_.on()->async_answer();
    if (is_elsewhere(head) || is_refused_range(head))
        co_return std::nullopt;
    error_code code;
    std::string why;
    auto const found = understand_first(head, asked, code, why);
    if (code == errc::http_status) {
        auto const body = co_await by_.on()->async_beginning(head);
        from_.refuse(head, body);
    }
    if (code)
        fail(code, from_.where(), why);
    by_.learn(head);
    by_.requests.front() = {
        .asked = asked, .answer = found.follows, .wanted = {}, .answered = true, .last = !head.keep_alive};
    co_return opened(found, head, before);
}

bool opening::is_elsewhere(answer const& head)
{
    if (!head.is_redirect())
        return false;
    if (!from_.move_to(head.bucket_region))
        from_.redirect(head);
    return true;
}

// Some answer 416 where no byte is left to serve, and some where they serve no ranges: without a range it will tell.
bool opening::is_refused_range(answer const& head)
{
    return head.status == 416 && head.total != 0U && std::exchange(what_.asks_for_range, false);
}

}  // namespace gpurx::ingest::detail
