// What a sanitized program checks and forgives, built into it: it holds for worker processes and by hand as
// well. TSAN_OPTIONS, ASAN_OPTIONS, LSAN_OPTIONS and UBSAN_OPTIONS override single settings.
// ACCORD_SUPPRESSIONS is the folder of the suppression files.

// The names are the runtimes', which look them up by the dynamic linker.
extern "C" {

const char* __tsan_default_options() {
  return "suppressions=" ACCORD_SUPPRESSIONS
         "/tsan.supp:history_size=4:second_deadlock_stack=1"
         // gRPC, Abseil, gloo and libtorch are not instrumented: what they do through intercepted calls has
         // no order that the tool could know. Accesses of our own code are checked as ever.
         ":ignore_noninstrumented_modules=1"
         // Otherwise whoever reads from any socket comes after all who wrote to any before: gRPC's traffic
         // would order a handler after the loop, and hide a lock that is missing between them.
         ":io_sync=0";
}

const char* __asan_default_options() {
  return "detect_leaks=1:detect_stack_use_after_return=1:check_initialization_order=1:strict_string_checks=1";
}

const char* __lsan_default_options() {
  return "suppressions=" ACCORD_SUPPRESSIONS "/lsan.supp:print_suppressions=0";
}

const char* __ubsan_default_options() { return "print_stacktrace=1"; }
}
