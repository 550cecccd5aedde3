"""A ZeroMQ peer for tests, driven by one JSON object a line on stdin.

It uses libzmq and msgpack as engines and routers do, so that what it understands is
what they understand. Every command is answered by one line.
"""

import json
import sys
import threading
import time
from collections import deque

import msgpack
import zmq

ctx = zmq.Context()
sockets = {}


def bind(sock, where):
    """Binds; a socket closed just now may still have the address for a moment."""
    for _ in range(200):
        try:
            return sock.bind(where)
        except zmq.ZMQError as e:
            if e.errno != zmq.EADDRINUSE:
                raise
            time.sleep(0.01)
    sock.bind(where)


class Publisher:
    """Acts like vLLM's ZmqEventPublisher: PUB, and a ROUTER that replays."""

    def __init__(self, topic, new, steps, pub, replay):
        self.topic, self.new = topic.encode(), new
        self.buffer = deque(maxlen=steps)
        self.seq = 0
        self.pub = ctx.socket(zmq.XPUB)  # a PUB that says who has subscribed
        self.pub.set_hwm(100000)
        bind(self.pub, pub)
        self.lock = threading.Lock()
        self.asked = []
        self.mute = False
        self.skip = set()
        self.running = True
        self.replay = ctx.socket(zmq.ROUTER)
        bind(self.replay, replay)
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def publish(self, payload, drop):
        with self.lock:
            frames = (self.topic, self.seq.to_bytes(8, "big"), payload)
            self.buffer.append(frames)
            self.seq += 1
            if not drop:
                self.pub.send_multipart(frames)

    def serve(self):
        while self.running:
            if not self.replay.poll(20):
                continue
            frames = self.replay.recv_multipart()
            if len(frames) != 3:
                continue
            client, _, start = frames
            start = int.from_bytes(start, "big")
            with self.lock:
                self.asked.append(start)
                if self.mute:
                    continue
                batches = list(self.buffer)
            for topic, seq, payload in batches:
                n = int.from_bytes(seq, "big")
                if n < start or n in self.skip:
                    continue
                body = (topic, seq, payload) if self.new else (seq, payload)
                self.replay.send_multipart((client, b"") + body)
            end = (-1).to_bytes(8, "big", signed=True)
            body = (self.topic, end, b"") if self.new else (end, b"")
            self.replay.send_multipart((client, b"") + body)

    def close(self, linger=0):
        self.running = False
        self.thread.join()
        self.pub.close(linger=linger)
        self.replay.close(linger=linger)


def endpoint(sock):
    return sock.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()


def do(c):
    op, name = c["op"], c.get("id")
    if op == "socket":
        s = sockets[name] = ctx.socket(getattr(zmq, c["type"]))
        s.set_hwm(c.get("hwm", 100000))
        if c.get("heartbeat"):
            s.setsockopt(zmq.HEARTBEAT_IVL, c["heartbeat"])
            s.setsockopt(zmq.HEARTBEAT_TIMEOUT, 2000 * c["heartbeat"])
        if "subscribe" in c:
            for t in c["subscribe"]:
                s.subscribe(t.encode())
        if "connect" in c:
            s.connect(c["connect"])
        if "bind" in c:
            s.bind(c["bind"])
        return {"endpoint": endpoint(s)}
    if op == "unsubscribe":
        sockets[name].unsubscribe(c["topic"].encode())
        return {}
    if op == "send":
        sockets[name].send_multipart([bytes.fromhex(f) for f in c["frames"]])
        return {}
    if op == "recv":  # up to n messages, or until one has an empty last frame
        s, got = sockets[name], []
        while len(got) < c["n"] and s.poll(c.get("timeout", 5000)):
            got.append([f.hex() for f in s.recv_multipart()])
            if c.get("end") and got[-1][-1] == "":
                break
        return {"messages": got}
    if op == "close":
        sockets.pop(name).close(linger=0)
        return {}
    if op == "publisher":
        p = sockets[name] = Publisher(c.get("topic", ""), c.get("new", True), c.get("steps", 10000),
                                      c.get("pub", "tcp://127.0.0.1:*"), c.get("replay", "tcp://127.0.0.1:*"))
        return {"pub": endpoint(p.pub), "replay": endpoint(p.replay)}
    if op == "publish":
        for payload in c["payloads"]:
            sockets[name].publish(bytes.fromhex(payload), c.get("drop", False))
        return {}
    if op == "subscriber":  # waits until somebody subscribes
        p = sockets[name]
        return {"subscribed": bool(p.pub.poll(c.get("timeout", 5000))) and p.pub.recv()[:1] == b"\1"}
    if op == "behave":
        p = sockets[name]
        with p.lock:
            p.mute = c.get("mute", False)
            p.skip = set(c.get("skip", []))
            if c.get("forget"):
                p.buffer.clear()
        return {}
    if op == "asked":
        with sockets[name].lock:
            return {"asked": sockets[name].asked}
    if op == "unpack":
        return {"value": msgpack.unpackb(bytes.fromhex(c["payload"]), strict_map_key=False)}
    if op == "pack":
        return {"payload": msgpack.packb(c["value"]).hex()}
    raise ValueError(op)


for line in sys.stdin:
    try:
        answer = do(json.loads(line))
    except Exception as e:  # the test says what went wrong
        answer = {"error": repr(e)}
    print(json.dumps(answer, default=lambda b: {"hex": b.hex()}), flush=True)
for s in sockets.values():
    s.close()
ctx.destroy(linger=0)
