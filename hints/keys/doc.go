// Package keys knows how vLLM and Dynamo hash blocks, and which keys of an engine
// belong to which of their hashes.
package keys
