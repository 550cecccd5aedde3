//go:build !race

package arena

// onHeap: see map_race.go.
const onHeap = false
