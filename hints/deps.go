package hints

import (
	_ "github.com/go-zeromq/zmq4" // package events will use it
)
