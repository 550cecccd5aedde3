// Package hints reads what a router says and answers each action of it.
//
// An envelope carries actions; each is parsed, routed to the handler of its type
// and answered on its own, in order. Advice (kv.fetch) is kept for its request;
// independent work (kv.prefetch, kv.move, kv.invalidate, kv.evict) is handed to the
// engine, and ends in outcomes that anyone may subscribe to.
//
// The format is that of the routers' envelope, version 0.1, as Dynamo, vLLM and
// SGLang carry it.
//
//	Dispatcher  envelopes in any form -> one Result for each action
//	Type        what it takes to serve one action type; Register adds it
//	Advice      what kv.fetch said of a request -> which source to ask for which key
//	Tracker     from the acceptance of independent work to its one end
//	Outcomes    the stream on which that is told
//	FanOut      the outcomes of all ranks of a worker -> one for each logical action
//
// The rules:
//
//   - Only what is no envelope is an error (ErrMalformed), and then nothing of it was
//     served: syntax is checked from end to end before the first handler runs.
//   - An action cannot cost its neighbours anything, whatever its parser or handler does.
//   - Nothing of an input is kept after the call, and nothing is reserved for sizes
//     that are only announced.
//   - Advice may be wrong. It decides whom to ask, never what is true.
package hints
