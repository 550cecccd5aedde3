// Package trace holds recorded and made-up streams of requests for a prefix
// cache, in the form of the Mooncake traces (github.com/kvcache-ai/Mooncake): one
// JSON object a line, whose hash_ids name the blocks of the prompt in order. Two
// requests that share a prefix share its leading ids.
//
// A Trace is immutable once made; the derived traces share its id slices.
package trace
