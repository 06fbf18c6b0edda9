#pragma once
// One file per subcommand. add_<name> declares its arguments and sets `action` when the user picks it;
// main runs the action, prints its error and exits with its code.
#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "base/status.hpp"
#include "device/device.hpp"

namespace accord::cli {

using Action = std::function<Status()>;

// Version, commit and build options, as --version prints them. Controller and workers must agree on it.
std::string build_id();

// Ranges of numbers; the messages of CLI11's own would spell out the largest double.
CLI::Validator positive_number();
CLI::Validator nonnegative_number();
CLI::Validator seed_number();  // a whole number of 64 bits

// --device, "cpu" unless given.
void add_device_option(CLI::App& command, std::string& device);
StatusOr<Device> open_device(const std::string& device);  // errors name the option

}  // namespace accord::cli
