#!/usr/bin/env python3
"""A reward server to start from. Needs grpcio and grpcio-tools.

  scripts/reward_server_example.py [PORT]     (default 7071)

In a recipe:
  reward: {type: external, address: "127.0.0.1:7071", batch_size: 32, deadline_s: 30}
"""
import concurrent.futures
import os
import sys

import grpc

from reward_example import score  # beside this file

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../proto"))
messages, services = grpc.protos_and_services("accord/v1/reward.proto")


class Rewards(services.RewardServiceServicer):
    def Score(self, request, context):
        """Several calls may run at once. A request without samples asks whether the server is there."""
        reply = messages.ScoreReply()
        for index, sample in enumerate(request.samples):
            value, pred = score({"response": sample.response, "label": sample.label})
            reply.rewards.add(index=index, score=value, pred=pred)
        return reply


def main():
    port = sys.argv[1] if len(sys.argv) > 1 else "7071"
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=4),
                         options=[("grpc.max_receive_message_length", -1)])
    services.add_RewardServiceServicer_to_server(Rewards(), server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    print(f"127.0.0.1:{port}", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
