"""What scripts/check_kernels must find: copies of a build's kernel object with one thing spoiled."""
import importlib.machinery
import importlib.util
import os
import struct
import sys
import tempfile
import unittest

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
BUILD = sys.argv.pop(1)


def load():
    path = os.path.join(ROOT, "scripts/check_kernels")
    loader = importlib.machinery.SourceFileLoader("check_kernels", path)
    spec = importlib.util.spec_from_loader("check_kernels", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


CHECK = load()
SOURCE = next(s for s in CHECK.sources_of(ROOT) if s.endswith("_cuda.cu"))


class CheckKernels(unittest.TestCase):
    def setUp(self):
        with open(CHECK.objects_of(BUILD)[os.path.realpath(SOURCE)], "rb") as file:
            self.data = bytearray(file.read())
        self.entry = self.data.index(struct.pack("<I", CHECK.FATBIN_MAGIC)) + 16

    def problems(self, source=SOURCE):
        with tempfile.NamedTemporaryFile(suffix=".o") as file:
            file.write(self.data)
            file.flush()
            return CHECK.check_source(source, "k.cu", {os.path.realpath(source): file.name})[0]

    def test_a_whole_object_passes(self):
        self.assertEqual(self.problems(), [])

    def test_another_architecture(self):
        struct.pack_into("<I", self.data, self.entry + 28, 80)
        found = self.problems()
        self.assertIn("not meant for sm_80a", found[0])
        self.assertTrue(any("no code of" in p and "for sm_90a" in p for p in found), found)

    def test_a_plain_architecture_is_not_the_specific_one(self):
        flags, = struct.unpack_from("<Q", self.data, self.entry + 40)
        struct.pack_into("<Q", self.data, self.entry + 40, flags & ~CHECK.FLAG_ARCH_SPECIFIC)
        self.assertTrue(any("no code of" in p and "for sm_90a" in p for p in self.problems()))

    def test_one_kernel_missing_for_one_architecture(self):
        kernel = sorted(next(iter(CHECK.device_code(CHECK.objects_of(BUILD)[os.path.realpath(SOURCE)]).values())))[0]
        header, size = struct.unpack_from("<IQ", self.data, self.entry + 4)
        end = self.entry + header + size
        name = kernel.encode() + b"\0"
        self.data[self.entry:end] = self.data[self.entry:end].replace(name, b"?" + name[1:])
        self.assertTrue(any(kernel in p for p in self.problems()))

    def test_compressed_code(self):
        flags, = struct.unpack_from("<Q", self.data, self.entry + 40)
        struct.pack_into("<Q", self.data, self.entry + 40, flags | CHECK.FLAG_COMPRESSED)
        self.assertIn("compressed", self.problems()[0])

    def test_a_source_without_an_object(self):
        self.assertIn("not compiled", CHECK.check_source(SOURCE, "k.cu", {})[0][0])

    def test_a_name_that_says_no_architecture(self):
        self.assertIn("ends in none of", CHECK.check_source("/x/op.cu", "op.cu", {})[0][0])


if __name__ == "__main__":
    unittest.main()
