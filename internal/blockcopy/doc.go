// Package blockcopy moves payload bytes into and out of the arena, and sums
// them.
//
// Rules of every copy here:
//
//   - Source and destination must not overlap, and belong to the caller until
//     the call returns. Checking builds (-tags kvcr_check, -race) panic on
//     overlap; others may leave any mixture of old and new bytes.
//   - No step that cannot be interrupted is longer than Chunk, and once in some
//     4 MiB the processor is yielded, so that copies on all processors delay
//     neither the collector nor timers. A caller must therefore not hold
//     a spinning lock across a copy.
//   - Nothing allocates.
//   - A release store after the call publishes the bytes. Streaming stores are
//     weakly ordered, so each routine that uses them fences before it returns,
//     also for those who publish by a plain move. The yield comes after the
//     fence: a goroutine may wake on another processor.
//
// Copy and CopySum go in, CopyOut comes out. In: a block just written is rarely
// read soon, and a streaming store (non-temporal, VMOVNTDQ) saves fetching the
// old line and keeps it out of the caches. Out: the caller is about to read.
//
// Streaming stores are amd64 with AVX2 or AVX-512 only, found at start; ISA
// names what is used. Elsewhere, and in race builds, every copy is the builtin
// one in the same chunks, with the same results.
//
// # Checksum
//
// The payload checksum is XXH3, 64 bits, seed 0, default secret, of the whole
// payload, as specified in the XXHash documentation (doc/xxhash_spec.md of
// github.com/Cyan4973/xxHash, XXH3_64bits). It finds accidents, not forgery.
// As a number it is what other implementations return; whoever stores or sends
// it chooses and states a byte order (the specification's canonical form is big
// endian).
//
// It was chosen by speed among sums of sufficient width, GB/s at 64 KiB with
// the source in cache: XXH3 with AVX-512 60 to 70, CRC-32C by the CRC
// instruction 29 (and only 32 bits), XXH64 16. And its long form takes in one
// 64-byte stripe after another, which is one vector register on its way from
// source to destination: CopySum does both at nearly the speed of Copy.
//
// The parts of XXH3 below 241 bytes, and the streaming form, are
// github.com/zeebo/xxh3.
package blockcopy
