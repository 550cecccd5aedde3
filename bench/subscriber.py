"""Counts what a publisher of KV events sends, as a router on libzmq hears it.

Prints one line of JSON whenever it has caught up, and every 64 messages: blocks stored,
blocks removed, messages that were missed. It ends when its input does.
"""

import json
import sys

import msgpack
import zmq

sock = zmq.Context().socket(zmq.SUB)
sock.set_hwm(100000)
sock.subscribe(b"")
sock.connect(sys.argv[1])
poller = zmq.Poller()
poller.register(sock, zmq.POLLIN)
poller.register(sys.stdin.fileno(), zmq.POLLIN)
seen = {"BlockStored": 0, "BlockRemoved": 0}
missed, expected, untold = 0, None, 0


def tell():
    print(json.dumps({"stored": seen["BlockStored"], "removed": seen["BlockRemoved"], "missed": missed}), flush=True)


while True:
    try:
        _, seq, payload = sock.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        if untold:
            tell()
            untold = 0
        if sys.stdin.fileno() in dict(poller.poll()):
            break
        continue
    seq = int.from_bytes(seq, "big")
    if expected is not None:
        missed += seq - expected
    expected = seq + 1
    for event in msgpack.unpackb(payload)[1]:
        if event["type"] in seen:
            seen[event["type"]] += len(event["block_hashes"])
    untold += 1
    if untold == 64:
        tell()
        untold = 0
sock.close(linger=0)
