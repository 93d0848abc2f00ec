// SPDX-License-Identifier: Apache-2.0
//
// Boost.JSON itself, compiled once for all samples.
#include <boost/json/src.hpp>
