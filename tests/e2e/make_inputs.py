"""Makes the inputs that the end-to-end tests share: PROGRAM DIRECTORY."""
import os
import sys

import harness

if __name__ == "__main__":
    harness.make_inputs(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]))
