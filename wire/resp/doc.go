// Package resp is the codec of the Redis protocol, RESP2 and RESP3: it cuts
// commands out of a byte stream and appends replies to a buffer.
//
// It reads and writes no connection and starts no goroutine. The rules:
//
//   - What a Parser returns depends on the bytes alone, not on how they were cut
//     into pieces, and it looks at each byte a bounded number of times.
//   - Nothing is allocated from a number on the wire: memory grows with the
//     bytes that have arrived.
//   - In the steady state nothing is allocated at all.
package resp
