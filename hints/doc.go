// Package hints reads what a router says and answers each action of it.
//
// An envelope carries actions; each is parsed, routed to the handler of its type
// and answered on its own, in order. Advice (kv.fetch) is kept for its request;
// independent work (kv.prefetch, kv.move, kv.invalidate, kv.evict) is handed to the
// engine, and ends in outcomes that anyone may subscribe to.
//
// The format is that of the routers' envelope, version 0.1, as Dynamo, vLLM and
// SGLang carry it.
package hints
