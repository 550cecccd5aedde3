// Package scene reads from a file who holds what of some prompts, asks the planner of
// hints, and shows what it says: for people who want to know what a router would do.
//
// # The file
//
// One JSON object:
//
//	block_size   tokens of a block; default 16
//	id_tokens    tokens that one of hash_ids stands for; default 512, as in the
//	             traces of Mooncake
//	members      workers and cache owners: name; worker and rank, or cache_owner (up to
//	             32 hexadecimal digits) and attached (the name of a worker); type:
//	             aggregated (the default), prefill or decode; endpoint, without which
//	             it is no source; capable: takes hints, and is a target
//	prompts      name, and one of local_hashes (one for each block), tokens, hash_ids;
//	             with the latter two also lora and cache_namespace
//	holdings     member, tier (host_pinned by default; device, disk, external), prompt
//	             (may be left out where there is one), ranges of its blocks, each
//	             [from, to) from 0; without ranges: all of them
//	events       router events, as dumps of an index have them
//
// The blocks of holdings have the hashes that Dynamo's mocker gives them, each from the
// one before it; those of events have what the events say. Where both speak of a place
// in a chain, the holdings count.
//
// Or a dump: router events, one JSON object a line. What a dump does not say is then
// assumed, and Scene.Assumed says what.
package scene
