//go:build race

package arena

// onHeap is true in race builds: the race detector ignores plain accesses to
// mapped memory and gives atomics there no edge, so that anonymous arenas come
// from the Go heap in these builds. Memfds and files keep real mappings.
const onHeap = true
