// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch_test_macros.hpp>
#include <gpurx/ingest/dtype.hpp>
#include <string>

using namespace gpurx::ingest;

TEST_CASE("A dtype is the DLPack number of its code and bits")
{
    CHECK(dlpack_code_of(dtype::bf16) == 4);
    CHECK(bits_of(dtype::bf16) == 16);
    CHECK(dlpack_code_of(dtype::f4_e2m1) == 17);
    CHECK(bits_of(dtype::f4_e2m1) == 4);
}

TEST_CASE("Every dtype has a name of its own, and is found by it")
{
    int known = 0;
    for (unsigned number = 0; number <= 0xffff; ++number) {
        if (!is_dtype(static_cast<std::uint16_t>(number)))
            continue;
        auto const type = static_cast<dtype>(number);
        INFO(name_of(type));
        CHECK(dtype_named(name_of(type)) == type);
        ++known;
    }
    CHECK(known == 23);
    CHECK_FALSE(dtype_named("F31"));
    CHECK_FALSE(dtype_named(""));
}
