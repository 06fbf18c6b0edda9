"""What scripts/check_includes must find, each in a small tree of its own."""
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts/check_includes")
ROOMS = """accord_room(base DIR x/base OWNS PkgConfig::xxhash)  # comment
accord_room(device DIR x/device USES base)
accord_room(kernels DIR x/kernels USES device)
accord_room(model DIR x/model USES kernels)
accord_room(text DIR x/text USES base OWNS PkgConfig::pcre2)
accord_room(rollout DIR x/rollout USES model)
accord_room(trainer DIR x/trainer USES model
  OWNS torch_cpu)
accord_room(controller DIR x/controller USES model rollout trainer)
accord_room(rpc DIR x/rpc USES controller OWNS accord_proto)
"""


def run(files):
    with tempfile.TemporaryDirectory() as root:
        for path, text in {"src/CMakeLists.txt": ROOMS, "src/base/status.hpp": "", **files}.items():
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(text)
        result = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True, check=False)
        return result.returncode, result.stdout


class CheckIncludes(unittest.TestCase):
    def passes(self, files):
        code, out = run(files)
        self.assertEqual((code, out), (0, ""))

    def fails(self, files, *parts):
        code, out = run(files)
        self.assertEqual(code, 1, out)
        for part in parts:
            self.assertIn(part, out)
        self.assertEqual(len(out.splitlines()), 1, out)

    def test_lower_rooms_owned_libraries_and_system_headers_are_fine(self):
        self.passes({
            "src/base/hash.cpp": '#include "base/status.hpp"\n#include <xxhash.h>\n#include <vector>\n'
                                 "#include <sys/mman.h>\n#include <absl/status/status.h>\n",
            "kernels/gemm/gemm.hpp": '#include "base/status.hpp"\n',
            "src/model/a.cpp": '#include "kernels/gemm/gemm.hpp"\n#include "base/status.hpp"\n',
            "src/trainer/a.cpp": "#include <torch/torch.h>\n",
            "src/rpc/a.cpp": "#include <grpcpp/grpcpp.h>\n",
        })

    def test_upward(self):
        self.fails({"src/model/a.hpp": "", "src/base/b.hpp": '#include "model/a.hpp"\n'},
                   "src/base/b.hpp:1:", "base may not include model")

    def test_cuda_headers(self):
        self.passes({"kernels/a/a_cuda.cu": "#include <cuda_runtime.h>\n", "src/device/b_cuda.cpp": "#include <cuda.h>\n"})
        self.fails({"kernels/a/a.hpp": "#include <cuda_runtime.h>\n"}, "kernels/a/a.hpp:1:", "belongs into .cu")
        self.fails({"kernels/a/a.cuh": "", "src/model/a.cpp": '#include "kernels/a/a.cuh"\n'}, "src/model/a.cpp:1:")

    def test_stage_rooms(self):
        self.fails({"src/rollout/a.hpp": "", "src/trainer/b.cpp": '\n#include "rollout/a.hpp"\n'},
                   "src/trainer/b.cpp:2:", "trainer and rollout")

    def test_room_that_is_not_used(self):
        self.fails({"src/text/a.hpp": "", "src/rollout/b.cpp": '#include "text/a.hpp"\n'},
                   "rollout includes text but does not USE it")

    def test_owner(self):
        self.fails({"src/model/a.cpp": "#include <pcre2.h>\n"}, "<pcre2.h> belongs to text, not to model")

    def test_unknown_library(self):
        self.fails({"src/model/a.cpp": "#include <boost/any.hpp>\n"}, "<boost/any.hpp> is unknown")

    def test_missing_file(self):
        self.fails({"src/model/a.cpp": '#include "model/gone.hpp"\n'}, '"model/gone.hpp" does not exist')

    def test_torch_in_a_header(self):
        self.fails({"src/trainer/a.hpp": "#include <torch/torch.h>\n"}, "torch/torch.h in a header")

    def test_torch_in_too_many_files(self):
        self.fails({f"src/trainer/{i}.cpp": "#include <torch/torch.h>\n" for i in range(4)}, "is in 4 files")

    def test_torch_and_protobuf_through_headers(self):
        self.fails({
            "src/trainer/a.hpp": "#include <ATen/core/Tensor.h>\n",
            "src/controller/b.hpp": '#include "trainer/a.hpp"\n',
            "src/rpc/c.cpp": '#include "controller/b.hpp"\n#include <grpcpp/grpcpp.h>\n',
        }, "src/rpc/c.cpp: sees both")

    def test_new_room_needs_a_level(self):
        self.fails({"src/extra/a.cpp": '#include "base/status.hpp"\n'}, "room 'extra' has no level")

    def test_empty_tree_is_no_success(self):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "src"))
            with open(os.path.join(root, "src/CMakeLists.txt"), "w", encoding="utf-8") as file:
                file.write(ROOMS)
            self.assertEqual(subprocess.run([sys.executable, SCRIPT, root], capture_output=True, check=False)
                             .returncode, 1)


if __name__ == "__main__":
    unittest.main()
