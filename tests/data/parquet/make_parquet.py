#!/usr/bin/env python3
"""Writes the Parquet files of the text room's tests; needs pyarrow. Usage: make_parquet.py [FOLDER]"""
import os
import sys

import pyarrow as pa
import pyarrow.parquet as pq

FOLDER = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
MESSAGE = pa.struct([("role", pa.string()), ("content", pa.string())])


def write(name, table, **options):
    pq.write_table(table, os.path.join(FOLDER, name), **options)


def main():
    count = 50
    # The layout of dapo-math-17k: messages, a nested label, columns that nobody asks for.
    write("dapo.parquet", pa.table({
        "data_source": pa.array(["math_dapo"] * count),
        "prompt": pa.array([[{"content": f"{i} + {i} = ? größer", "role": "user"}] for i in range(count)],
                           pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))),
        "ability": pa.array(["MATH"] * count),
        "reward_model": pa.array([{"ground_truth": str(2 * i), "style": "rule"} for i in range(count)]),
        "extra_info": pa.array([{"index": f"{i:08x}", "when": i} for i in range(count)],
                               pa.struct([("index", pa.string()), ("when", pa.timestamp("ms"))])),
    }), row_group_size=8, compression="zstd")
    # Plain texts and numbers; several encodings and compressions of small row groups.
    plain = pa.table({
        "prompt": pa.array([f"{i % 5} + 1" for i in range(count)]).dictionary_encode(),
        "label": pa.array([i % 5 + 1 for i in range(count)], pa.int64()),
        "half": pa.array([i / 2 for i in range(count)]),
        "response": pa.array([f"{i % 5 + 1}" for i in range(count)], pa.large_string()),
        "small": pa.array([i for i in range(count)], pa.uint8()),
    })
    write("plain.parquet", plain, row_group_size=7, compression="snappy", data_page_version="2.0")
    write("gzip.parquet", plain, compression="gzip", use_dictionary=False)
    # Chats with a system message; nulls where the reader must say so.
    write("chats.parquet", pa.table({
        "prompt": pa.array([[{"role": "system", "content": "s"}, {"role": "user", "content": "a"}],
                            [{"role": "user", "content": "b"}], None, [{"role": "user", "content": None}], []],
                           pa.large_list(MESSAGE)),
        "label": pa.array(["1", "2", "3", "4", "5"]),
    }))
    write("odd.parquet", pa.table({
        "prompt": pa.array(["a", "b", "c"]),
        "label": pa.array(["1", None, "3"]),
        "bytes": pa.array([b"x", b"y", b"z"]),
        "real": pa.array([1.0, float("nan"), 2.5]),
    }))
    write("empty.parquet", pa.table({"prompt": pa.array([], pa.string()), "label": pa.array([], pa.string())}))


if __name__ == "__main__":
    main()
