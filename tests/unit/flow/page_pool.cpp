// SPDX-License-Identifier: Apache-2.0
#include "memory/page_pool.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <catch2/catch_test_macros.hpp>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "base/syscalls.hpp"

namespace gpurx::detail {

namespace {

constexpr std::size_t kib = 1024;
constexpr std::size_t mib = 1024 * kib;

std::vector<std::uint32_t> take(page_pool& pool, std::size_t count)
{
    std::vector<std::uint32_t> pages(count);
    pages.resize(pool.take(pages));
    return pages;
}

class event {
  public:
    event() : fd_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)} {}
    [[nodiscard]] int fd() const { return fd_.get(); }
    // How often it was written to since the last question.
    [[nodiscard]] std::uint64_t count() const
    {
        std::uint64_t value = 0;
        return ::read(fd_.get(), &value, sizeof value) == sizeof value ? value : 0;
    }

  private:
    unique_fd fd_;
};

}  // namespace

TEST_CASE("the size of a page follows the size of the memory")
{
    struct scenario {
        std::size_t bytes;
        unsigned flows;
        std::size_t page;
    };
    std::vector<scenario> const scenarios{
        {64 * mib, 16, 64 * kib}, {1024 * mib, 1, 64 * kib}, {16 * mib, 16, 64 * kib}, {16 * mib - 1, 16, 32 * kib},
        {1 * mib, 16, 4 * kib},   {1 * mib, 1, 64 * kib},    {8 * kib, 1, 4 * kib},    {4 * mib, 64, 4 * kib},
    };
    for (auto const& [bytes, flows, page] : scenarios) {
        INFO(bytes << " bytes for " << flows);
        CHECK(page_pool::page_size_for(bytes, flows) == page);
        page_pool const pool{bytes, flows};
        CHECK(pool.page_size() == page);
        CHECK(pool.page_count() == bytes / page);
        CHECK(pool.free_count() == pool.page_count());
    }
}

TEST_CASE("the smallest memory gives each flow two pages")
{
    for (unsigned const flows : {1U, 16U, 100U}) {
        page_pool const pool{page_pool::smallest_memory(flows), flows};
        CHECK(pool.page_count() == 2 * flows);
    }
}

TEST_CASE("a page is taken by one at a time")
{
    page_pool pool{64 * kib, 1};
    REQUIRE(pool.page_count() == 16);
    auto const first = take(pool, 10);
    auto const second = take(pool, 10);
    CHECK(first.size() == 10);
    CHECK(second.size() == 6);
    CHECK(take(pool, 1).empty());
    std::set<std::uint32_t> all{first.begin(), first.end()};
    all.insert(second.begin(), second.end());
    CHECK(all.size() == 16);
    CHECK(*all.rbegin() == 15);
}

TEST_CASE("pages that were taken together are adjacent, the second time too")
{
    page_pool pool{64 * kib, 1};
    auto const pages = take(pool, 4);
    CHECK(pages == std::vector<std::uint32_t>{0, 1, 2, 3});
    pool.put(pages);
    CHECK(take(pool, 4) == pages);
}

TEST_CASE("pages in a row follow the last one, if half of what is wanted is free there")
{
    page_pool pool{64 * kib, 1, page_pool::order::in_a_row};
    auto const take_from = [&](std::size_t first, std::size_t count) {
        std::vector<std::uint32_t> pages(count);
        pages.resize(pool.take(pages, first));
        return pages;
    };
    using pages = std::vector<std::uint32_t>;
    CHECK(take_from(0, 4) == pages{0, 1, 2, 3});
    CHECK(take_from(6, 2) == pages{6, 7});
    CHECK(take_from(4, 4) == pages{4, 5});  // a half
    pool.put(pages{3});
    CHECK(take_from(3, 4) == pages{8, 9, 10, 11});     // enough, further on
    CHECK(take_from(14, 8) == pages{12, 13, 14, 15});  // most of all
    pool.put(pages{0, 1, 13, 15});
    CHECK(take_from(16, 3) == pages{0, 1});  // no page follows the last one of all
    CHECK(take_from(14, 1) == pages{15});
    CHECK(pool.free_count() == 2);
    CHECK(take_from(9, 2) == pages{13});
    CHECK(take_from(9, 2) == pages{3});
    CHECK(take_from(9, 2).empty());
    CHECK(pool.free_count() == 0);
}

TEST_CASE("a page is free when the last reference goes")
{
    page_pool pool{64 * kib, 1};
    auto const pages = take(pool, 2);
    CHECK(pool.is_sole_owner(pages[0]));
    pool.add_references(std::span{pages}.first(1));
    CHECK_FALSE(pool.is_sole_owner(pages[0]));
    CHECK(pool.is_sole_owner(pages[1]));
    pool.put(pages);
    CHECK(pool.free_count() == 15);
    CHECK(pool.is_sole_owner(pages[0]));
    pool.put(std::span{pages}.first(1));
    CHECK(pool.free_count() == 16);
}

TEST_CASE("the same page twice in one put loses two references")
{
    page_pool pool{64 * kib, 1};
    auto const page = take(pool, 1);
    pool.add_references(page);
    std::array const twice{page[0], page[0]};
    pool.put(twice);
    CHECK(pool.free_count() == 16);
}

TEST_CASE("a flow that waits for pages is woken once, when one is free")
{
    page_pool pool{8 * kib, 1};
    event wake;
    CHECK_FALSE(pool.notify(wake.fd()));  // there are free pages
    auto const pages = take(pool, 2);
    CHECK(pool.notify(wake.fd()));
    CHECK(pool.notify(wake.fd()));  // asked twice, told once
    CHECK(wake.count() == 0);

    SECTION("a page becomes free")
    {
        pool.put(std::span{pages}.first(1));
        CHECK(wake.count() == 1);
        pool.put(std::span{pages}.last(1));
        CHECK(wake.count() == 0);
    }
    SECTION("a reference goes, but not the last")
    {
        pool.add_references(std::span{pages}.first(1));
        pool.put(std::span{pages}.first(1));
        CHECK(wake.count() == 0);
    }
    SECTION("nothing is put back")
    {
        pool.put({});
        CHECK(wake.count() == 0);
    }
    SECTION("it was forgotten")
    {
        pool.forget(wake.fd());
        pool.put(pages);
        CHECK(wake.count() == 0);
    }
}

TEST_CASE("all waiters are woken")
{
    page_pool pool{16 * kib, 2};
    std::array<event, 2> wakes;
    auto const pages = take(pool, 4);
    for (auto const& wake : wakes)
        CHECK(pool.notify(wake.fd()));
    pool.put(std::span{pages}.first(1));
    for (auto const& wake : wakes)
        CHECK(wake.count() == 1);
}

TEST_CASE("threads share a pool")
{
    page_pool pool{64 * kib, 4};
    std::vector<std::atomic<int>> holders(pool.page_count());
    std::atomic<int> clashes{0};
    std::vector<std::thread> threads;
    for (unsigned seed = 0; seed < 4; ++seed)
        threads.emplace_back([&, seed] {
            std::mt19937 random{seed};
            for (int round = 0; round < 2000; ++round) {
                auto const pages = take(pool, 1 + random() % 8);
                for (auto const page : pages)
                    clashes += holders[page]++;
                pool.add_references(pages);
                pool.put(pages);
                for (auto const page : pages)
                    --holders[page];
                pool.put(pages);
            }
        });
    for (auto& thread : threads)
        thread.join();
    CHECK(clashes == 0);
    CHECK(pool.free_count() == pool.page_count());
}

}  // namespace gpurx::detail
