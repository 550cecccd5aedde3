// Package load drives a cache server from one thread: connections that send
// batches of pipelined requests and wait for the answers.
//
// It is made to cost less than any server it measures: requests are rendered
// once for each key or written from one shared value, answers have a known length
// and are counted, and one epoll loop with plain system calls serves all
// connections. Answers that fit a buffer are also checked: each begins as it must
// and carries the number of its key.
package load
