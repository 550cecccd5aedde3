package hints

import (
	_ "github.com/go-zeromq/zmq4"
	_ "github.com/vmihailenco/msgpack/v5"
)
