// Package events is the exchange of inventory events with routers: vLLM's KV events
// (ZMQ PUB with sequence numbers, ROUTER replay, msgpack) and the envelope of
// Dynamo's event plane.
//
// What an engine says is an Event; Events travel in a Batch, whose number is the
// publisher's sequence. What a router wants to hear is a RouterEvent; a Normalizer
// makes them from batches:
//
//	Event, Batch   as on the wire                     Decoder, AppendBatch
//	RouterEvent    what a worker holds now            Normalizer
//	Publisher      sends batches, keeps the last ones
//	Consumer       reads batches, asks for those that are missing
//	Envelope       a RouterEvent on Dynamo's plane    PlanePublisher, RouterEventDecoder
//
// Rules:
//
//	W1  A batch that is no well-formed msgpack is an error. An event that makes no
//	    sense in a good batch is marked, counted and skipped; its neighbours count.
//	W2  A consumer hears the batches of a publisher in the order of their sequence,
//	    each at most once, and is told of every one that it will never hear.
//	W3  Publishing never waits for a subscriber.
//	W4  What a peer sends costs memory in proportion to its bytes, up to a limit.
package events
