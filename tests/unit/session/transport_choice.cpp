// SPDX-License-Identifier: Apache-2.0
#include "session/transport_choice.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/byte_size.hpp"

using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;
using gpurx::detail::explain_tokens;
using gpurx::detail::fits_array_tokens;
using gpurx::detail::kibibyte;

namespace gpurx::detail {

namespace {

transport_obstacle of(int error, std::string_view operation, bool by_daemon = false)
{
    return obstacle_of({error, boost::system::system_category()}, operation, by_daemon);
}

}  // namespace

TEST_CASE("an error of a NIC is mapped to the missing prerequisite of devmem")
{
    using enum transport_obstacle;
    CHECK(obstacle_of(errc::memory_too_small, "share out memory", false) == memory_too_small);
    CHECK(obstacle_of(errc::queue_busy, "lease", false) == too_few_queues);
    CHECK(obstacle_of(errc::journal_invalid, "read journal", true) == state_directory);
    CHECK(of(EPERM, "get rings") == no_rights);
    CHECK(of(EPERM, "use state directory") == state_directory);
    CHECK(of(ETIMEDOUT, "take lock") == state_directory);
    CHECK(of(EOPNOTSUPP, "get rings") == no_header_split);
    CHECK(of(EINVAL, "set tcp-data-split") == no_header_split);
    CHECK(of(ERANGE, "lease") == too_few_queues);
    CHECK(of(EINVAL, "set channels") == too_few_queues);
    CHECK(of(ENETDOWN, "bind") == interface_down);
    CHECK(of(ENODEV, "bind-rx") == interface_down);
    CHECK(of(EOPNOTSUPP, "bind-rx") == not_bound);
    CHECK(of(ENOSPC, "add RSS context") == other);
    CHECK(of(EOPNOTSUPP, "register with io_uring") == not_bound);
    CHECK(of(EPERM, "register with io_uring") == no_rights);
    CHECK(of(EOPNOTSUPP, "use leased queues") == leased_queues);
}

TEST_CASE("each obstacle of io_uring has a reason of its own")
{
    using enum transport_obstacle;
    CHECK(obstacle_of(zcrx_lack::nothing) == none);
    CHECK(obstacle_of(zcrx_lack::permission) == io_uring_disabled);
    CHECK(obstacle_of(zcrx_lack::system_calls) == io_uring_filtered);
    for (auto const lack : {zcrx_lack::io_uring, zcrx_lack::zcrx, zcrx_lack::dmabuf, zcrx_lack::sharing})
        CHECK(obstacle_of(lack) == io_uring_lacks_zcrx);
    CHECK(obstacle_of(zcrx_lack::net_admin) == no_rights);
    CHECK(obstacle_of(zcrx_lack::ring) == other);
}

TEST_CASE("automatic tries zcrx if it is allowed, before devmem unless that has array tokens")
{
    using enum gpurx::transport;
    CHECK(transports_to_try(automatic, false, false) == std::vector{devmem, copy});
    CHECK(transports_to_try(automatic, false, true) == std::vector{devmem, copy});
    CHECK(transports_to_try(automatic, true, false) == std::vector{zcrx, devmem, copy});
    CHECK(transports_to_try(automatic, true, true) == std::vector{devmem, zcrx, copy});
    for (auto const asked : {devmem, zcrx, copy}) {
        CAPTURE(to_string(asked));
        CHECK(transports_to_try(asked, true, true) == std::vector{asked});
        CHECK(transports_to_try(asked, false, false) == std::vector{asked});
    }
}

TEST_CASE("the reason against a transport is the one that was met, or that automatic preferred another")
{
    using enum transport_obstacle;
    constexpr auto devmem = gpurx::transport::devmem;
    constexpr auto zcrx = gpurx::transport::zcrx;
    constexpr auto copy = gpurx::transport::copy;
    auto const reason = [](gpurx::transport which, transport_choice const& made) {
        return why_not(which, made).obstacle;
    };

    CHECK(reason(devmem, {.in_use = devmem}) == none);
    CHECK(reason(zcrx, {.in_use = zcrx}) == none);
    CHECK(why_not(devmem, {.asked = copy}) == reason_against{devmem, not_asked_for, "transport copy was requested"});
    CHECK(reason(devmem, {.asked = zcrx, .in_use = zcrx}) == not_asked_for);
    CHECK(reason(zcrx, {.asked = devmem, .in_use = devmem}) == not_asked_for);

    CHECK(reason(zcrx, {.in_use = devmem, .array_tokens = true}) == better_in_use);
    CHECK(reason(devmem, {.in_use = zcrx}) == better_in_use);
    CHECK(reason(zcrx, {.in_use = copy}) == not_allowed);

    // On a stock kernel it is recommended, with its figure.
    auto const recommended = why_not(zcrx, {.in_use = devmem});
    CHECK(recommended.obstacle == not_allowed);
    CHECK_THAT(recommended.text, ContainsSubstring("set rx_session_options::allow_zcrx") &&
                                     ContainsSubstring("0.14x") && ContainsSubstring("no hardware NIC"));

    // What was tried has its own.
    std::vector<reason_against> const met{{zcrx, no_rights, "first"}, {devmem, not_bound, "second"}};
    CHECK(why_not(zcrx, {.in_use = copy, .refused = met}) == met[0]);
    CHECK(why_not(devmem, {.in_use = copy, .refused = met}) == met[1]);
}

TEST_CASE("explain() has a line for each transport that is not in use")
{
    std::vector<reason_against> const met{{gpurx::transport::zcrx, transport_obstacle::no_rights, "first"},
                                          {gpurx::transport::devmem, transport_obstacle::not_bound, "second"}};
    CHECK(explain_others({.in_use = gpurx::transport::copy, .refused = met}) ==
          "devmem: not in use: second\nzcrx: not in use: first\n");
    CHECK(explain_others({.in_use = gpurx::transport::devmem, .refused = {met[0]}}) ==
          "zcrx: not in use: first\ncopy: not in use: it works too, but the CPU would copy each byte\n");
    CHECK_THAT(explain_others({.in_use = gpurx::transport::zcrx}),
               StartsWith("devmem: not in use: zcrx costs less") && ContainsSubstring("\ncopy: not in use: "));
}

TEST_CASE("refusals of gpurxd and of the NIC have different obstacles")
{
    using enum transport_obstacle;
    CHECK(of(EACCES, "open", true) == refused_by_gpurxd);
    CHECK(of(EUSERS, "open", true) == refused_by_gpurxd);
    CHECK(of(ECONNRESET, "ask", true) == refused_by_gpurxd);
    CHECK(of(EACCES, "connect to", true) == refused_by_gpurxd);
    CHECK(of(EOPNOTSUPP, "bind-rx", true) == not_bound);
    CHECK(of(EOPNOTSUPP, "get rings", true) == no_header_split);
}

}  // namespace gpurx::detail

namespace gpurx::test {

namespace {

constexpr int first_dmabuf = 100;
constexpr int second_dmabuf = 101;

struct exported_memory final : detail::memory_state {
    explicit exported_memory(int other) : other_{other} { set_export(first_dmabuf, {}, {}); }
    [[nodiscard]] std::string explain() const override { return {}; }
    void acquire(cuda_stream_ref /*stream*/) noexcept override {}
    [[nodiscard]] int other_dmabuf_fd() override { return other_; }

  private:
    int other_;
};

struct no_nic final : detail::session_nic {
    [[nodiscard]] std::uint32_t dmabuf_id() const noexcept override { return 0; }
    [[nodiscard]] std::vector<unsigned> queues() const override { return {}; }
    [[nodiscard]] std::size_t page_size() const noexcept override { return 0; }
    [[nodiscard]] bool has_array_tokens() const noexcept override { return false; }
    [[nodiscard]] detail::nic_ring ring() const noexcept override { return {}; }
    [[nodiscard]] std::unique_ptr<detail::steering_rule> steer_flow(int /*socket*/,
                                                                    asio::ip::tcp::endpoint const& /*local*/,
                                                                    asio::ip::tcp::endpoint const& /*remote*/,
                                                                    error_code& /*code*/, diagnostics& /*why*/) override
    {
        return nullptr;
    }
    [[nodiscard]] std::unique_ptr<detail::steering_rule> steer_port(int /*socket*/,
                                                                    asio::ip::tcp::endpoint const& /*local*/,
                                                                    bool /*also_v4*/, error_code& /*code*/,
                                                                    diagnostics& /*why*/) override
    {
        return nullptr;
    }
    [[nodiscard]] std::optional<detail::pool_sample> sample() noexcept override { return {}; }
};

error_code number(int of)
{
    return {of, boost::system::system_category()};
}

// Leases that fail so for each dmabuf but those that are taken.
struct nic_that_takes {
    std::vector<int> taken;
    error_code refusal = number(524);
    char const* operation = "bind-rx";
    std::vector<int> asked{};

    std::unique_ptr<detail::session_nic> lease(detail::memory_state& memory, bool& other, error_code& code,
                                               diagnostics& why)
    {
        auto const bind = [this](int dmabuf, error_code& failed,
                                 diagnostics& reason) -> std::unique_ptr<detail::session_nic> {
            asked.push_back(dmabuf);
            failed.clear();
            if (std::find(taken.begin(), taken.end(), dmabuf) != taken.end())
                return std::make_unique<no_nic>();
            failed = refusal;
            reason = {.operation = operation, .object = {}, .kernel_message = {}, .advice = "the first"};
            refusal = number(EINVAL);
            return nullptr;
        };
        return detail::lease_for(memory, bind, other, code, why);
    }
};

}  // namespace

TEST_CASE("a NIC that cannot be attached to a memory's dmabuf gets the other one")
{
    exported_memory memory{second_dmabuf};
    nic_that_takes nic{.taken = {second_dmabuf}};
    bool other = false;
    error_code code;
    diagnostics why;
    CHECK(nic.lease(memory, other, code, why) != nullptr);
    CHECK_FALSE(code);
    CHECK(other);
    CHECK(nic.asked == std::vector{first_dmabuf, second_dmabuf});
}

TEST_CASE("the first refusal is reported if the NIC refuses both dmabufs")
{
    exported_memory memory{second_dmabuf};
    nic_that_takes nic{.taken = {}};
    bool other = true;
    error_code code;
    diagnostics why;
    CHECK(nic.lease(memory, other, code, why) == nullptr);
    CHECK(code == number(524));
    CHECK_FALSE(other);
    CHECK(nic.asked.size() == 2);
}

TEST_CASE("the other dmabuf is not tried where the first was taken, was not the reason, or is the only one")
{
    exported_memory both{second_dmabuf};
    exported_memory one{-1};
    bool other = true;
    error_code code;
    diagnostics why;
    nic_that_takes first{.taken = {first_dmabuf, second_dmabuf}};
    CHECK(first.lease(both, other, code, why) != nullptr);
    CHECK(first.asked.size() == 1);
    CHECK_FALSE(other);
    nic_that_takes forbidden{.taken = {second_dmabuf}, .refusal = number(EPERM)};
    CHECK(forbidden.lease(both, other, code, why) == nullptr);
    CHECK(forbidden.asked.size() == 1);
    nic_that_takes unable{.taken = {second_dmabuf}, .operation = "set channels"};
    CHECK(unable.lease(both, other, code, why) == nullptr);
    CHECK(unable.asked.size() == 1);
    nic_that_takes by_io_uring{.taken = {second_dmabuf}, .operation = "register with io_uring"};
    CHECK(by_io_uring.lease(both, other, code, why) != nullptr);
    CHECK(other);
    nic_that_takes nothing_else{.taken = {second_dmabuf}};
    CHECK(nothing_else.lease(one, other, code, why) == nullptr);
    CHECK(nothing_else.asked.size() == 1);
    CHECK(code == number(524));
}

}  // namespace gpurx::test

namespace {

constexpr std::uint64_t half_tebibyte = std::uint64_t{1} << 39U;

}  // namespace

TEST_CASE("a memory has array tokens if it has less than 2^27 pages")
{
    struct row {
        std::uint64_t bytes;
        std::size_t page;
        bool fits;
    };
    for (auto const& [bytes, page, fits] : {
             row{half_tebibyte - 4 * kibibyte, 4 * kibibyte, true},
             row{half_tebibyte, 4 * kibibyte, false},
             row{half_tebibyte, 8 * kibibyte, true},
             row{2 * half_tebibyte, 8 * kibibyte, false},
             row{2 * half_tebibyte, 64 * kibibyte, true},
         }) {
        CAPTURE(bytes, page);
        CHECK(fits_array_tokens(bytes, page) == fits);
    }
}

TEST_CASE("explain() names the tokens, and the reason against array tokens")
{
    CHECK_THAT(explain_tokens(true, 64 * kibibyte, 4 * kibibyte), StartsWith("array tokens"));
    CHECK_THAT(explain_tokens(false, 64 * kibibyte, 4 * kibibyte),
               StartsWith("xarray tokens") && ContainsSubstring("this kernel has no array tokens"));
    CHECK_THAT(explain_tokens(false, half_tebibyte, 4 * kibibyte),
               ContainsSubstring("this kernel has no array tokens"));

    auto const too_many = explain_tokens(true, half_tebibyte, 4 * kibibyte);
    CHECK_THAT(too_many, StartsWith("xarray tokens") && ContainsSubstring("134217727 pages"));
    CHECK_THAT(too_many, ContainsSubstring("134217728 of 4 KiB") && ContainsSubstring("larger pages make fewer"));
}
