"""A program that holds libtorch must load libgloo before it: libtorch exports another gloo.
Usage: link_order_test.py PROGRAM"""
import re
import subprocess
import sys

output = subprocess.run(["readelf", "-d", sys.argv[1]], capture_output=True, text=True, check=True).stdout
needed = re.findall(r"\(NEEDED\).*\[(.+)\]", output)
position = {name: next((i for i, n in enumerate(needed) if n.startswith(name)), None)
            for name in ("libgloo.so", "libtorch_cpu.so")}
if None in position.values() or position["libgloo.so"] > position["libtorch_cpu.so"]:
    sys.exit(f"{sys.argv[1]}: libgloo.so must come before libtorch_cpu.so, but the order is {', '.join(needed)}")
