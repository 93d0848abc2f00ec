// SPDX-License-Identifier: Apache-2.0
#include "stream/batch_layout.hpp"

#include <catch2/catch_test_macros.hpp>

using namespace gpurx::ingest;
using gpurx::ingest::detail::batch_layout;
using gpurx::ingest::detail::row_copy;

TEST_CASE("Tensors of a batch lie one after the other, aligned")
{
    batch_layout const layout{{{"x", dtype::f32, {3}}, {"y", dtype::i64, {}}, {"z", dtype::u8, {1000}}}, 100, 1 << 20};
    CHECK(layout.offset(0) == 0);
    CHECK(layout.offset(1) == 1280);
    CHECK(layout.offset(2) == 2304);
    CHECK(layout.size() == 2304 + 100'000);
    CHECK(layout.row_size(0) == 12);
}

TEST_CASE("Rows of a frame, tensor after tensor, go to their places in a batch")
{
    batch_layout const layout{{{"x", dtype::f32, {3}}, {"y", dtype::i64, {}}}, 100, 1 << 20};
    std::vector<row_copy> copies{{1, 2, 3}};
    layout.copies(30, 10, 95, 5, copies);
    CHECK(copies == std::vector<row_copy>{{120, 1140, 60}, {30 * 12 + 80, 1280 + 95 * 8, 40}});
    layout.copies(30, 0, 0, 30, copies);
    CHECK(copies == std::vector<row_copy>{{0, 0, 360}, {360, 1280, 240}});
}

TEST_CASE("A batch of rows that a sender made large is refused")
{
    std::vector<tensor_spec> const tensors{{"x", dtype::f32, {1000}}};
    CHECK_NOTHROW(batch_layout{tensors, 100, 400'000});
    CHECK_THROWS_AS((batch_layout{tensors, 100, 399'999}), gpurx::system_error);
    CHECK_THROWS_AS((batch_layout{{{"x", dtype::u8, {std::uint64_t{1} << 60}}}, 100, ~std::uint64_t{0}}),
                    gpurx::system_error);
}
