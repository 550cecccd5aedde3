// Package keys knows how vLLM and Dynamo hash blocks, and which keys of an engine
// belong to which of their hashes.
//
// # Hashes
//
// A block is a run of BlockSize tokens; only complete blocks have hashes. The local
// hash of a block is that of its own tokens, the sequence hash that of all tokens
// up to its end:
//
//	local[i] = XXH3-64(le32(token) ..., seed)
//	seq[0]   = local[0]
//	seq[i]   = XXH3-64(le64(seq[i-1]) le64(local[i]), 1337)
//
// seed is 1337 for a plain model; LoRA and cache namespace move it (BlockSeed). vLLM
// has hashes of its own, digests of 32 bytes as a rule, of which routers see the
// low 64 bits (Low64).
//
// # Keys
//
// What a router calls a block is 64 bits; what an engine calls it is a key of up to
// 1024 bytes. A Style says how such keys hold the hash:
//
//	Dynamo   0        8        16        n
//	         +--------+--------+---------+
//	         |  seq   | local  | suffix  |   both hashes big-endian;
//	         +--------+--------+---------+   local and suffix where configured
//
//	VLLM     0                 n-4       n
//	         +-----------------+---------+
//	         |     digest      |  group  |   the last 8 bytes of the digest are the
//	         +-----------------+---------+   hash; group big-endian, where configured
//
// A Dynamo key without a local hash follows from its hash alone. All others are found
// through a Table, which holds every key that is resident in the engine.
//
// # Descriptions
//
// Routers match a prompt with blocks by their tokens and their places in a chain. Neither
// follows from a key, as a rule: the host program tells (Table.Describe), for blocks that
// it deposits, and for those that it is about to have fetched. Of blocks that hints bring
// here the Table of the peer tells (Table.AppendDescription and TakeDescription).
//
// # Recipes
//
// Two processes find each other's blocks only if they make keys alike. A Recipe
// names how: "dynamo/xxh3-1337/bs64", "vllm/sha256/low64/bs16". It belongs into what
// two nodes compare about a namespace (Recipe.Describe), so that a difference is
// told by name and does not show as a hit rate of zero.
package keys
