#pragma once
// Debian 12 ships Catch2 v2 (one header), Ubuntu 24.04 v3 (many): tests include this file only.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
