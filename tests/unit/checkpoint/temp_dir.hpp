#pragma once
#include "support/temp_dir.hpp"
